/*
 * lane.h - the transfer lane of a bare-metal port: it moves tensors between RAM
 * and the SD card, in the order of lane_submit. Without a card, the storage is
 * the chip's own flash, which has no transfers. lane_read and lane_write run
 * between two blocks of such a transfer. Most functions are those of struct
 * poet_port (port.h).
 */
#ifndef POET_LANE_H
#define POET_LANE_H

#include "poet/port.h"

uint32_t lane_storage_blocks(void *context);
uint32_t lane_allocation_mib(void *context);
POET_CHECKED int lane_read(void *context, uint32_t block, void *data,
                           uint32_t count);
POET_CHECKED int lane_write(void *context, uint32_t block, const void *data,
                            uint32_t count);
POET_CHECKED int lane_flush(void *context);
bool lane_is_flash(void *context);
POET_CHECKED int lane_erase(void *context, uint32_t block, uint32_t count);
void lane_submit(void *context, struct poet_transfer *transfer);
void lane_usage(void *context, struct poet_usage *usage);
/* Return true if a transfer has ended since the last call. */
bool lane_noticed(void);
/* Call chip_sleep, and add the time slept to `asleep`, which lane_usage
 * returns. */
void lane_sleep(void);
/* The same, and let the interrupt run. Sleep again if the interrupt only moved
 * a job of the card on, and `stop`, which may be NULL, returns false. The
 * caller has locked out all interrupts, and no caller of it has. */
void lane_rest(bool (*stop)(void));

#endif
