/*
 * exact.c - a test of the options of the compiler and of the modes of the
 * processor.
 */
#include "poet/exact.h"

#include <stdint.h>

/* Three floats, and ((a * a + c) + d) - d if each operation is rounded to
 * nearest, as bits. */
struct sum {
  uint32_t a, c, d, result;
};
static const struct sum sums[] = {
    /* (1 + 2^-12)^2 - (1 + 2^-11) is 0; with a fused or a wider product 2^-24,
     * rounded up 2^-23. */
    {0x3f800800, 0xbf801000, 0, 0},
    /* The square of 2^-64 * (1 + 5 * 2^-23), with 2^-127 and 2^-125, gives
     * 3 * 2^-128 + 4 * 2^-149; rounded down 2 instead of 4, in another order 3.
     * Without subnormals, it gives 0. */
    {0x1f800005, 0x00400000, 0x01000000, 0x00600004},
};

union number {
  uint32_t bits;
  float value;
};

static __attribute__((noinline)) bool agrees(const struct sum *sum) {
  __asm__("" : "+r"(sum)); /* the compiler cannot foresee the values */
  const union number a = {sum->a}, c = {sum->c}, d = {sum->d};
  const union number result = {
      .value = ((a.value * a.value + c.value) + d.value) - d.value};
  return result.bits == sum->result;
}

/* Is 5 / 3 not 5 * (1 / 3), and -0 + 0 not -0? For GCC, exact.h prevents both.
 * Clang has no macro for these options. */
static bool divides_and_adds(void) {
#ifdef __clang__
  union number five = {0x40a00000}, zero = {0x80000000};
  __asm__("" : "+r"(five.bits), "+r"(zero.bits));
  const union number quotient = {.value = five.value / 3.0f};
  const union number sum = {.value = zero.value + 0.0f};
  return quotient.bits == 0x3fd55555 && sum.bits == 0;
#else
  return true;
#endif
}

bool poet_is_exact(void) {
  return !__FINITE_MATH_ONLY__ && agrees(&sums[0]) && agrees(&sums[1]) &&
         divides_and_adds();
}
