/* numbers.h - operands from a generator, and a hash of results, for the
   programs whose results the host must repeat. SEED: start of the generator. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __arm__
#include "test.h"
#else
#include <stdio.h>

static void print_hex(uint32_t value) {
  printf("%08x\n", (unsigned)value);
}

static void print(const char *text) {
  printf("%s\n", text);
}
#endif

static uint32_t state = SEED, hash;

static uint32_t draw(uint32_t end) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return end ? (state >> 4) % end : state;
}

static float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static void add_bits_to_hash(uint32_t bits) {
  hash = (hash ^ bits) * 16777619u;
  hash ^= hash >> 15;
}

/* The bits of a NaN are not defined. */
static void add_to_hash(float x) {
  const uint32_t bits = to_bits(x);
  add_bits_to_hash(bits << 1 > 0xff000000u ? 0x7fc00000u : bits);
}

static const uint32_t specials[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff,
    0x00800000, 0x80800000, 0x00ffffff, 0x7f7fffff, 0xff7fffff, 0x7f800000,
    0xff800000, 0x7fc00000, 0x7f800001, 0x3f800000, 0xbf800000, 0x34000000};
enum { SPECIALS = sizeof specials / sizeof *specials };

/* C does not define the order of two calls of draw in one expression. */
static uint32_t normal(uint32_t low, uint32_t end, uint32_t mantissa) {
  const uint32_t sign = draw(2) << 31;
  return sign | (low + draw(end - low)) << 23 | mantissa;
}

/* A mantissa of few bits, from the highest on; then perhaps the lowest. */
static uint32_t short_of(uint32_t mantissa, uint32_t some) {
  const uint32_t lost = 10 + some % 13;
  return (mantissa >> lost << lost) | (some >> 8 & some >> 9 & 1);
}

/* Kinds 0 to 8 are tame (poet_tame) with each other. */
enum { TAME = 9, KINDS = 13 };

static float number(uint32_t kind) {
  const uint32_t mantissa = draw(0) & 0x7fffff;
  const uint32_t some = draw(0);
  switch (kind) {
  case 0: /* as normally distributed */
    return from_bits(normal(127 - some % 10, 128, mantissa));
  case 1: /* cancellation */
    return from_bits(normal(125, 129, mantissa));
  case 2: /* ties */
    return from_bits(normal(115, 140, short_of(mantissa, some)));
  case 3: /* wide */
    return from_bits(normal(65, 177, mantissa));
  case 4: /* next to powers of two */
    return from_bits(
        normal(110, 140, some & 16 ? mantissa & 3 : mantissa | 0x7ffffc));
  case 5: /* half of them zero */
    return from_bits(some & 16 ? some << 31 : normal(120, 129, mantissa));
  case 6:
    return from_bits(normal(118, 136, 0));
  case 7:
    return (float)((int32_t)(some % 33) - 16);
  case 8: /* differences are subnormal */
    return from_bits(normal(65, 68, mantissa));
  case 9:
    return from_bits(some);
  case 10:
    return from_bits(specials[some % SPECIALS]);
  case 11: /* subnormal numbers and products */
    return from_bits(normal(0, 70, mantissa));
  default: /* overflow */
    return from_bits(normal(180, 255, some & 16 ? mantissa : mantissa >> 12));
  }
}

#ifdef __arm__
/* The body of a naked function that calls another one of at most five
   arguments, with values in the registers that the other one must keep. It
   returns 0 if they were kept. */
#define KEEPS_REGISTERS(function)                                              \
  __asm volatile("push {r4-r7, lr}\n"                                          \
                 "mov r4, r8\n mov r5, r9\n mov r6, r10\n mov r7, r11\n"       \
                 "push {r4-r7}\n"                                              \
                 "ldr r4, [sp, #36]\n push {r4, r5}\n"                         \
                 "movs r4, #0x51\n mov r8, r4\n"                               \
                 "movs r5, #0x52\n mov r9, r5\n movs r5, #0x62\n"              \
                 "movs r6, #0x53\n mov r10, r6\n"                              \
                 "movs r7, #0x54\n mov r11, r7\n"                              \
                 "movs r6, #0x63\n movs r7, #0x64\n"                           \
                 "ldr r4, =" function "\n"                                     \
                 "blx r4\n"                                                    \
                 "movs r0, #0\n"                                               \
                 "mov r1, r8\n sub r1, #0x51\n orr r0, r1\n"                   \
                 "mov r1, r9\n sub r1, #0x52\n orr r0, r1\n"                   \
                 "mov r1, r10\n sub r1, #0x53\n orr r0, r1\n"                  \
                 "mov r1, r11\n sub r1, #0x54\n orr r0, r1\n"                  \
                 "sub r5, #0x62\n orr r0, r5\n"                                \
                 "sub r6, #0x63\n orr r0, r6\n"                                \
                 "sub r7, #0x64\n orr r0, r7\n"                                \
                 "add sp, #8\n pop {r4-r7}\n"                                  \
                 "mov r8, r4\n mov r9, r5\n mov r10, r6\n mov r11, r7\n"       \
                 "pop {r4-r7, pc}\n"                                           \
                 ".ltorg\n")
#endif
