/* align.h - accesses that need a multiple of 4 on the Cortex-M4 (ARMv7-M
   A3.2.1). Unicorn permits any address for them. So base registers are checked
   when a block begins and when the next one begins. One case is missed: a block
   that computes a base, uses it and overwrites it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Registers, by bit, after some instructions of a block. */
struct alignment {
  uint16_t changed;     /* may have another remainder by 4 than before */
  uint16_t needed;      /* must be multiples of 4 when the block begins */
  uint16_t left;        /* others: multiples of 4 when the block ends */
  unsigned conditional; /* instructions left of an IT block: not checked */
};

/* Has the instruction that begins with this halfword 32 bits? */
bool is_wide(uint16_t first);
/* Account for the next instruction of the block. */
void align_next(struct alignment *state, uint16_t first, uint16_t second);
