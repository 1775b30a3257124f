/*
 * lane.h - the transfer lane of a bare-metal port: the library's transfers,
 * one after another, and synchronous access between two of them.
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
/* Has anything ended since the last call? */
bool lane_noticed(void);
/* chip_sleep, whose time is counted. */
void lane_sleep(void);

#endif
