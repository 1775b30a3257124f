/* What a host does with the tensors of a board. */
#ifndef HOST_H
#define HOST_H

#include "reference.h"

/* Write a tensor, in requests of at most `most` bytes, or in one if that is 0.
   `repeats`: one request in this many is sent again, as after a lost answer; 0:
   none. */
int host_write(struct poet *p, uint32_t tensor, const uint8_t *rows,
               uint32_t most, uint32_t repeats);
/* Read a tensor, and compare its CRC with the one that the board computes. If
   they differ, read it once more; page_damaged if they differ again. */
int host_read(struct poet *p, uint32_t tensor, uint8_t *rows);

#endif
