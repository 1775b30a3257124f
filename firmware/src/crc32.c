/*
 * crc32.c - CRC-32 with the reflected polynomial 0xedb88320, as in zlib and
 * Ethernet, one byte at a time with a table.
 *
 * It keeps no state: the caller passes the result for the earlier bytes. The
 * preprocessor computes the table, so that it is a constant of 1 KiB in flash.
 */
#include "poet/poet.h"

/* CRC is linear: the table entry of a byte is the XOR of the entries of its
 * bits. */
#define BIT(n, i, value) (((n) >> (i) & 1) ? value : 0)
#define BYTE(n)                                                                \
  (BIT(n, 7, 0xedb88320u) ^ BIT(n, 6, 0x76dc4190u) ^ BIT(n, 5, 0x3b6e20c8u) ^  \
   BIT(n, 4, 0x1db71064u) ^ BIT(n, 3, 0x0edb8832u) ^ BIT(n, 2, 0x076dc419u) ^  \
   BIT(n, 1, 0xee0e612cu) ^ BIT(n, 0, 0x77073096u))
#define BYTES4(n) BYTE(n), BYTE((n) + 1), BYTE((n) + 2), BYTE((n) + 3)
#define BYTES16(n) BYTES4(n), BYTES4((n) + 4), BYTES4((n) + 8), BYTES4((n) + 12)
#define BYTES64(n)                                                             \
  BYTES16(n), BYTES16((n) + 16), BYTES16((n) + 32), BYTES16((n) + 48)

static const uint32_t table[256] = {BYTES64(0), BYTES64(64), BYTES64(128),
                                    BYTES64(192)};

uint32_t poet_crc(uint32_t crc, const void *data, uint32_t size) {
  const uint8_t *byte = data;
  crc = ~crc;
  while (size--) {
    crc = table[(crc ^ *byte++) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}
