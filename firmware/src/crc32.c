/*
 * crc32.c - CRC-32 with the reflected polynomial 0xedb88320, as in zlib and
 * Ethernet, with a table for one byte at a time. On 64-bit processors, which
 * have memory enough, eight tables for eight bytes at a time. On a Cortex-M4F,
 * three tables for the 11, 11 and 10 bits of a word, which take 20 KB: not in
 * an application (POET_LIBRARY). On a Cortex-M0+, which has little flash, two
 * tables for the halves of a byte.
 *
 * It keeps no state: the caller passes the result for the earlier bytes. The
 * preprocessor computes the tables, so that each is a constant in flash.
 */
#include <string.h>

#include "poet/poet.h"

/* CRC is linear: the table entry of a byte is the XOR of the entries of its
 * bits. The arguments after `n` are the entries of 0x01, 0x02, 0x04 to 0x80. */
#define BIT(n, i, value) (((n) >> (i) & 1) ? value : 0)
#define BYTE(n, a, b, c, d, e, f, g, h)                                        \
  (BIT(n, 0, a) ^ BIT(n, 1, b) ^ BIT(n, 2, c) ^ BIT(n, 3, d) ^ BIT(n, 4, e) ^  \
   BIT(n, 5, f) ^ BIT(n, 6, g) ^ BIT(n, 7, h))
#define BYTES4(n, ...)                                                         \
  BYTE(n, __VA_ARGS__), BYTE((n) + 1, __VA_ARGS__),                            \
      BYTE((n) + 2, __VA_ARGS__), BYTE((n) + 3, __VA_ARGS__)
#define BYTES16(n, ...)                                                        \
  BYTES4(n, __VA_ARGS__), BYTES4((n) + 4, __VA_ARGS__),                        \
      BYTES4((n) + 8, __VA_ARGS__), BYTES4((n) + 12, __VA_ARGS__)
#define BYTES64(n, ...)                                                        \
  BYTES16(n, __VA_ARGS__), BYTES16((n) + 16, __VA_ARGS__),                     \
      BYTES16((n) + 32, __VA_ARGS__), BYTES16((n) + 48, __VA_ARGS__)
#define TABLE(...)                                                             \
  {BYTES64(0, __VA_ARGS__), BYTES64(64, __VA_ARGS__),                          \
   BYTES64(128, __VA_ARGS__), BYTES64(192, __VA_ARGS__)}

#ifdef __ARM_ARCH_6M__
/* halves[i] has the CRCs of a byte of which only the bits 4 i to 4 i + 3 may be
 * set, without the two inversions. */
static const uint32_t halves[][16] = {
    {BYTES16(0, 0x77073096, 0xee0e612c, 0x076dc419, 0x0edb8832, 0, 0, 0, 0)},
    {BYTES16(0, 0x1db71064, 0x3b6e20c8, 0x76dc4190, 0xedb88320, 0, 0, 0, 0)},
};
#else
/* table[i] has the CRCs of a byte that i zeros follow, without the two
 * inversions. */
static const uint32_t table[][256] = {
    TABLE(0x77073096, 0xee0e612c, 0x076dc419, 0x0edb8832, 0x1db71064,
          0x3b6e20c8, 0x76dc4190, 0xedb88320),
#if UINTPTR_MAX > UINT32_MAX
    TABLE(0x191b3141, 0x32366282, 0x646cc504, 0xc8d98a08, 0x4ac21251,
          0x958424a2, 0xf0794f05, 0x3b83984b),
    TABLE(0x01c26a37, 0x0384d46e, 0x0709a8dc, 0x0e1351b8, 0x1c26a370,
          0x384d46e0, 0x709a8dc0, 0xe1351b80),
    TABLE(0xb8bc6765, 0xaa09c88b, 0x8f629757, 0xc5b428ef, 0x5019579f,
          0xa032af3e, 0x9b14583d, 0xed59b63b),
    TABLE(0x3d6029b0, 0x7ac05360, 0xf580a6c0, 0x30704bc1, 0x60e09782,
          0xc1c12f04, 0x58f35849, 0xb1e6b092),
    TABLE(0xcb5cd3a5, 0x4dc8a10b, 0x9b914216, 0xec53826d, 0x03d6029b,
          0x07ac0536, 0x0f580a6c, 0x1eb014d8),
    TABLE(0xa6770bb4, 0x979f1129, 0xf44f2413, 0x33ef4e67, 0x67de9cce,
          0xcfbd399c, 0x440b7579, 0x8816eaf2),
    TABLE(0xccaa009e, 0x4225077d, 0x844a0efa, 0xd3e51bb5, 0x7cbb312b,
          0xf9766256, 0x299dc2ed, 0x533b85da),
#endif
};
#endif

#if defined __ARM_ARCH_7EM__ && !POET_LIBRARY
#define ADDS_WORDS
/* The CRCs of a word of which only the bits 0 to 10, 11 to 21, or 22 to 31 may
 * be set. As above, the arguments are the entries of the single bits. */
#define WIDE(n, h, i, j, ...)                                                  \
  (BIT(n, 8, h) ^ BIT(n, 9, i) ^ BIT(n, 10, j) ^ BYTE(n, __VA_ARGS__))
#define WIDE4(n, ...)                                                          \
  WIDE(n, __VA_ARGS__), WIDE((n) + 1, __VA_ARGS__),                            \
      WIDE((n) + 2, __VA_ARGS__), WIDE((n) + 3, __VA_ARGS__)
#define WIDE16(n, ...)                                                         \
  WIDE4(n, __VA_ARGS__), WIDE4((n) + 4, __VA_ARGS__),                          \
      WIDE4((n) + 8, __VA_ARGS__), WIDE4((n) + 12, __VA_ARGS__)
#define WIDE64(n, ...)                                                         \
  WIDE16(n, __VA_ARGS__), WIDE16((n) + 16, __VA_ARGS__),                       \
      WIDE16((n) + 32, __VA_ARGS__), WIDE16((n) + 48, __VA_ARGS__)
#define WIDE256(n, ...)                                                        \
  WIDE64(n, __VA_ARGS__), WIDE64((n) + 64, __VA_ARGS__),                       \
      WIDE64((n) + 128, __VA_ARGS__), WIDE64((n) + 192, __VA_ARGS__)
#define WIDE1024(n, ...)                                                       \
  WIDE256(n, __VA_ARGS__), WIDE256((n) + 256, __VA_ARGS__),                    \
      WIDE256((n) + 512, __VA_ARGS__), WIDE256((n) + 768, __VA_ARGS__)
#define WIDE2048(...) WIDE1024(0, __VA_ARGS__), WIDE1024(1024, __VA_ARGS__)

static const uint32_t low[2048] = {WIDE2048(
    0x01c26a37, 0x0384d46e, 0x0709a8dc, 0xb8bc6765, 0xaa09c88b, 0x8f629757,
    0xc5b428ef, 0x5019579f, 0xa032af3e, 0x9b14583d, 0xed59b63b)};
static const uint32_t middle[2048] = {WIDE2048(
    0xc8d98a08, 0x4ac21251, 0x958424a2, 0x0e1351b8, 0x1c26a370, 0x384d46e0,
    0x709a8dc0, 0xe1351b80, 0x191b3141, 0x32366282, 0x646cc504)};
static const uint32_t high[1024] = {
    WIDE1024(0, 0x76dc4190, 0xedb88320, 0, 0xf0794f05, 0x3b83984b, 0x77073096,
             0xee0e612c, 0x076dc419, 0x0edb8832, 0x1db71064, 0x3b6e20c8)};

/* One word: 10 cycles, the three loads pipelined. */
#define ADD_WORD(word)                                                         \
  "eor %[crc], " word "\n"                                                     \
  "ubfx r8, %[crc], #0, #11\n"                                                 \
  "ubfx r9, %[crc], #11, #11\n"                                                \
  "lsr r10, %[crc], #22\n"                                                     \
  "ldr r8, [%[low], r8, lsl #2]\n"                                             \
  "ldr r9, [%[middle], r9, lsl #2]\n"                                          \
  "ldr r10, [%[high], r10, lsl #2]\n"                                          \
  "eor %[crc], r8, r9\n"                                                       \
  "eor %[crc], r10\n"

#define ADD_FOUR                                                               \
  "ldmia %[from]!, {r4, r5, r6, r12}\n" ADD_WORD("r4") ADD_WORD("r5")          \
      ADD_WORD("r6") ADD_WORD("r12")

/* Add eights of words to a CRC, without the two inversions. */
static uint32_t add_words(uint32_t crc, const uint8_t *from,
                          const uint8_t *end) {
  __asm volatile(
      "1:\n" ADD_FOUR ADD_FOUR "cmp %[from], %[end]\n"
      "bne 1b\n"
      : [crc] "+r"(crc), [from] "+r"(from)
      : [end] "r"(end), [low] "r"(low), [middle] "r"(middle), [high] "r"(high)
      : "r4", "r5", "r6", "r8", "r9", "r10", "r12", "cc", "memory");
  return crc;
}
#endif

uint32_t poet_crc(uint32_t crc, const void *data, uint32_t size) {
  const uint8_t *byte = data;
  crc = ~crc;
#if UINTPTR_MAX > UINT32_MAX
  for (; size >= 8; size -= 8, byte += 8) {
    uint32_t low, high;
    memcpy(&low, byte, sizeof low);
    memcpy(&high, byte + sizeof low, sizeof high);
    low ^= crc;
    crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^
          table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^
          table[3][high & 0xff] ^ table[2][high >> 8 & 0xff] ^
          table[1][high >> 16 & 0xff] ^ table[0][high >> 24];
  }
#elif defined ADDS_WORDS
  const uint32_t fast = (uintptr_t)byte % 4 ? 0 : size & ~31u;
  if (fast) {
    crc = add_words(crc, byte, byte + fast);
    byte += fast;
    size -= fast;
  }
#endif
  while (size--) {
    const uint32_t index = (crc ^ *byte++) & 0xff;
#ifdef __ARM_ARCH_6M__
    crc = halves[0][index & 15] ^ halves[1][index >> 4] ^ (crc >> 8);
#else
    crc = table[0][index] ^ (crc >> 8);
#endif
  }
  return ~crc;
}
