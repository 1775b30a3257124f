/* The plan's stream of bits, least significant first, read through the
 * cache. Reading behind its end is refused. */
#include "runtime.h"

uint32_t poet_bit_width(uint32_t count) {
  uint32_t width = 0;
  while (width < 32 && count > 1u << width) {
    width++;
  }
  return width;
}

int poet_take_bits(struct poet *p, uint32_t count, uint32_t *value) {
  uint32_t *bit = &p->decoder.bit;
  *value = 0;
  if (count > p->plan.bit_bytes * 8 - *bit) {
    return poet_refuse(p);
  }
  for (uint32_t taken = 0; taken < count;) {
    const uint32_t at = *bit % 8;
    const uint32_t part = count - taken < 8 - at ? count - taken : 8 - at;
    uint8_t byte;
    TRY(poet_get(p, POET_PLAN_BLOCK, (uint32_t)sizeof p->plan + *bit / 8, &byte,
                 sizeof byte));
    *value |= ((uint32_t)byte >> at & ((1u << part) - 1)) << taken;
    taken += part;
    *bit += part;
  }
  return 0;
}

int poet_take_gamma(struct poet *p, uint32_t *value) {
  uint32_t behind = 0, bit, rest;
  TRY(poet_take_bits(p, 1, &bit));
  while (!bit) {
    if (++behind > 31) {
      return poet_refuse(p);
    }
    TRY(poet_take_bits(p, 1, &bit));
  }
  TRY(poet_take_bits(p, behind, &rest));
  *value = (1u << behind) + rest - 1;
  return 0;
}
