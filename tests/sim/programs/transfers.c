/* The copies and CRCs of transfers on the Cortex-M4F, for blocks from a
   generator. Prints a hash of the results for each batch. The same program,
   compiled for the host, is the oracle: it computes CRCs bit by bit.

   BATCHES: number of batches. SEED: start of the generator. */
#include "numbers.h"

enum { BLOCK = 512, SPACE = BLOCK + 16 };

static uint8_t data[SPACE], copy[SPACE];

#ifdef __arm__
/* Functions of their own, so that each has a symbol. */
#define OUTLINED static __attribute__((noinline))
OUTLINED void copy_block(uint8_t *to, const uint8_t *from);
OUTLINED uint16_t block_crc(const uint8_t *block);
OUTLINED uint32_t add_words(uint32_t crc, const uint8_t *from, const uint8_t *end);
#include "crc32.c"
#undef NVIC_ISER /* test.h defines these without an argument */
#undef NVIC_ISPR
#undef NVIC_IPR
#include "spi.c"
#else
static void copy_block(uint8_t *to, const uint8_t *from) {
  memcpy(to, from, BLOCK);
}

static uint16_t block_crc(const uint8_t *block) {
  uint32_t crc = 0;
  for (uint32_t i = 0; i < 8 * BLOCK; i++) {
    const uint32_t bit = block[i / 8] >> (7 - i % 8) & 1;
    crc = (crc << 1 & 0xffff) ^ ((crc >> 15 ^ bit) ? 0x1021 : 0);
  }
  return (uint16_t)crc;
}

static uint32_t poet_crc(uint32_t crc, const void *from, uint32_t size) {
  const uint8_t *bytes = from;
  crc = ~crc;
  for (uint32_t i = 0; i < 8 * size; i++) {
    const uint32_t bit = bytes[i / 8] >> i % 8 & 1;
    crc = crc >> 1 ^ ((crc ^ bit) & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}
#endif

int main(void) {
  for (uint32_t batch = 0; batch < BATCHES; batch++) {
    for (uint32_t i = 0; i < SPACE; i++) {
      data[i] = (uint8_t)(draw(0) >> 8);
      copy[i] = (uint8_t)~data[i];
    }
    const uint32_t from = draw(8), to = 4 * draw(4), start = draw(0);
    add_bits_to_hash(block_crc(data + from));
    add_bits_to_hash(poet_crc(start, data + from, draw(SPACE - 8)));
    add_bits_to_hash(poet_crc(start, data, BLOCK));
    copy_block(copy + to, data + from);
    for (uint32_t i = 0; i < SPACE; i++) {
      add_bits_to_hash(copy[i]);
    }
    print_hex(hash);
  }
  return 0;
}
