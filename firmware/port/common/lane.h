/*
 * lane.h - the transfer lane of a bare-metal port: it runs the library's
 * transfers in order, and synchronous requests between two of their blocks.
 * Most functions are those of struct poet_port (port.h).
 */
#ifndef POET_LANE_H
#define POET_LANE_H

#include "poet/port.h"

uint32_t lane_storage_blocks(void *context);
int lane_read(void *context, uint32_t block, void *data, uint32_t count);
int lane_write(void *context, uint32_t block, const void *data, uint32_t count);
int lane_flush(void *context);
void lane_submit(void *context, struct poet_transfer *transfer);
void lane_usage(void *context, struct poet_usage *usage);
/* Return true if a transfer has ended since the last call. */
bool lane_noticed(void);
/* Call chip_sleep, and add the time to the usage `asleep`. */
void lane_sleep(void);

#endif
