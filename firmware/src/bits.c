/*
 * bits.c - the plan's bit stream, least significant bit first, read from
 * storage through the cache.
 *
 * State: decoder.bit, .bits and .held. The lowest `held` bits of `bits` are the
 * next bits of the stream; `bit` is the position of the first of these bits.
 * poet_decode_start clears all three. Reading past the end of the stream is the
 * error bad_plan.
 */
#include "runtime.h"

int poet_refuse(struct poet *p) {
  return poet_fail(p, POET_ERROR_bad_plan, p->decoder.statement);
}

uint32_t poet_bit_width(uint32_t count) {
  uint32_t width = 0;
  while (width < 32 && count > 1u << width) {
    width++;
  }
  return width;
}

/* Read the next bytes of the plan. `held` is 0, so `bit` is at the start of a
 * byte. */
static POET_CHECKED int refill(struct poet *p) {
  struct poet_decoder *d = &p->decoder;
  const uint32_t at = d->bit / 8, left = p->plan.bit_bytes - at;
  const uint32_t size = left < sizeof d->bits ? left : sizeof d->bits;
  TRY(poet_get_part(p, POET_PLAN_BLOCK, (uint32_t)sizeof p->plan + at, &d->bits,
                    size));
  d->held = (uint16_t)(8 * size);
  return 0;
}

int poet_take_bits(struct poet *p, uint32_t count, uint32_t *value) {
  struct poet_decoder *d = &p->decoder;
  *value = 0;
  if (count > p->plan.bit_bytes * 8 - d->bit) {
    return poet_refuse(p);
  }
  for (uint32_t taken = 0; taken < count;) {
    if (!d->held) {
      TRY(refill(p));
    }
    const uint32_t part = count - taken < d->held ? count - taken : d->held;
    const uint64_t bits = d->bits;
    *value |= (uint32_t)(bits & ((1ull << part) - 1)) << taken;
    d->bits = (uint32_t)(bits >> part);
    d->held = (uint16_t)(d->held - part);
    d->bit += part;
    taken += part;
  }
  return 0;
}

int poet_take_gamma(struct poet *p, uint32_t *value) {
  uint32_t zeros = 0, bit, rest;
  TRY(poet_take_bits(p, 1, &bit));
  while (!bit) {
    if (++zeros > 31) {
      return poet_refuse(p);
    }
    TRY(poet_take_bits(p, 1, &bit));
  }
  TRY(poet_take_bits(p, zeros, &rest));
  *value = (1u << zeros) + rest - 1;
  return 0;
}
