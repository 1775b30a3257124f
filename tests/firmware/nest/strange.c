#include "strange.h"

#include "../board.h"

uint32_t strange(uint32_t old) {
  static const uint32_t limits[] = {
      0,          1,          2,          3,         4,     5,      7,
      8,          16,         248,        255,       256,   504,    508,
      512,        1024,       0x7fff,     8192,      16384, 0xffff, 0x10000,
      0x7fffffff, 0x80000000, 0xfffffffc, 0xffffffff};
  const uint32_t byte = 8 * random_below(4);
  switch (random_below(7)) {
  case 0:
    return limits[random_below(sizeof limits / sizeof *limits)];
  case 1:
    return old + random_below(9) - 4;
  case 2:
    return old ^ 1u << random_below(32);
  case 3:
    return random_below(12);
  case 4: /* the lower half alone */
    return (old & 0xffff0000u) |
           (limits[random_below(sizeof limits / sizeof *limits)] & 0xffffu);
  case 5: /* a byte alone */
    return (old & ~(0xffu << byte)) | random_below(256) << byte;
  default:
    return random_below(1u << random_below(31));
  }
}
