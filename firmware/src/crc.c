/* CRC-32 of the reflected polynomial 0xedb88320, four bits at a time: 64 bytes
 * of table, which is what the smallest board can spare. */
#include "poet/poet.h"

uint32_t poet_crc(uint32_t crc, const void *data, uint32_t size) {
  static const uint32_t nibble[16] = {
      0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
      0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
      0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
  const uint8_t *byte = data;
  crc = ~crc;
  for (const uint8_t *end = byte + size; byte != end; byte++) {
    crc = nibble[(crc ^ *byte) & 15] ^ (crc >> 4);
    crc = nibble[(crc ^ (uint32_t)(*byte >> 4)) & 15] ^ (crc >> 4);
  }
  return ~crc;
}
