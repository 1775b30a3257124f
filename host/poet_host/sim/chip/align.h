/* Accesses that need a multiple of 4 on the Cortex-M4 (ARMv7-M A3.2.1): Unicorn
   lets them pass with any address. So base registers are looked at when a block
   begins and when the next one does; an access whose base the same block makes
   before it and overwrites behind it escapes. */
#pragma once

#include <stdint.h>

/* What the instructions of a block have done so far to the registers. */
struct alignment {
  uint16_t changed;     /* may have got another remainder by 4 */
  uint16_t needed;      /* must be multiples of 4 when the block begins */
  uint16_t left;        /* others that must be when it has ended */
  unsigned conditional; /* instructions to come in an IT block: left out */
};

/* The next instruction. */
void align_next(struct alignment *state, uint16_t first, uint16_t second);
