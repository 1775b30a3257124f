/* align.h - accesses that need a multiple of 4 on the Cortex-M4 (ARMv7-M
   A3.2.1). Unicorn permits any address for them. So base registers are checked
   when a block begins and when the next one begins. One case is missed: a block
   that computes a base, uses it and overwrites it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Sets of registers (bit n: register n), after some instructions of a block. */
struct alignment {
  uint16_t changed; /* their remainder by 4 may have changed */
  uint16_t needed;  /* must be multiples of 4 at the block's start */
  uint16_t left;    /* must be multiples of 4 at the block's end */
  /* remaining instructions of an IT block, which are not checked */
  unsigned conditional;
};

/* Return true if the instruction that begins with this halfword has 32 bits. */
bool is_wide(uint16_t first);
/* Account for the next instruction of the block. */
void align_next(struct alignment *state, uint16_t first, uint16_t second);
