/*
 * spi.c - nRF52840: the card's SPI on SPIM3, at up to 16 MHz.
 *
 * State: `bounce`, the bytes being sent, valid until the next exchange, and
 * `received` and `crc` for chip_spi_crc, valid until the next block.
 *
 * Anomaly 198: SPIM3 may send wrong data while another master uses the same RAM
 * block. So bytes to send are copied to `bounce`, alone in a block of its own.
 * Received bytes go directly to their destination: then SPIM3 sends only its
 * over-read character, which does not come from RAM.
 */
#include <string.h>

#include "chip.h"
#include "parts.h"
#include "poet/poet.h"
#include "registers.h"

enum {
  SCK_PIN = 15, /* of port 1 */
  MOSI_PIN = 13,
  MISO_PIN = 14,
  SELECT_PIN = 12,
  PORT_1 = 32, /* in PSEL */
};

enum { PAD = 2 }; /* so that a block begins at a word */
static uint8_t bounce[PAD + CHIP_EXCHANGE_MAX]
    __attribute__((section(".spim3"), aligned(4)));

static const uint8_t *received; /* NULL: the latest block was sent */
static uint16_t crc;            /* of that block */

const bool chip_crc_excludes_blocks = false;

uint16_t chip_spi_speed(unsigned level) {
  static const struct {
    uint32_t frequency;
    uint16_t khz;
  } speeds[] = {{SPIM_250KHZ, 250},
                {SPIM_1MHZ, 1000},
                {SPIM_4MHZ, 4000},
                {SPIM_8MHZ, 8000},
                {SPIM_16MHZ, 16000}};
  SPIM_FREQUENCY = speeds[level].frequency;
  return speeds[level].khz;
}

void chip_spi_select(bool selected) {
  if (selected) {
    P1_OUTCLR = 1u << SELECT_PIN;
  } else {
    P1_OUTSET = 1u << SELECT_PIN;
  }
}

/* Send `sent` bytes of `bounce`, and receive `size` bytes. */
static void start(uint32_t sent, uint8_t *in, uint32_t size) {
  SPIM_TXD_PTR = (uint32_t)(uintptr_t)(bounce + PAD);
  SPIM_TXD_MAXCNT = sent;
  SPIM_RXD_PTR = (uint32_t)(uintptr_t)in;
  SPIM_RXD_MAXCNT = size;
  SPIM_EVENTS_END = 0; /* clear the event before the exchange, which sets it */
  chip_finish_stores();
  SPIM_TASKS_START = 1;
}

void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size) {
  if (out) {
    memcpy(bounce + PAD, out, size);
  } else if (!in) {
    /* If both `out` and `in` are NULL, send bytes 0xff. */
    memset(bounce + PAD, 0xff, size);
  }
  start(out || !in ? size : 0, in, in ? size : 0);
}

/* Copy a block to words, eight at a time: the loads follow each other. */
static void copy_block(uint8_t *to, const uint8_t *from) {
  const uint8_t *end = from + POET_BLOCK;
  __asm volatile("1: ldr r4, [%[from]]\n"
                 "ldr r5, [%[from], #4]\n"
                 "ldr r6, [%[from], #8]\n"
                 "ldr r8, [%[from], #12]\n"
                 "ldr r9, [%[from], #16]\n"
                 "ldr r10, [%[from], #20]\n"
                 "ldr r11, [%[from], #24]\n"
                 "ldr r12, [%[from], #28]\n"
                 "stm %[to]!, {r4, r5, r6, r8, r9, r10, r11, r12}\n"
                 "add %[from], #32\n"
                 "cmp %[from], %[end]\n"
                 "bne 1b\n"
                 : [from] "+r"(from), [to] "+r"(to)
                 : [end] "r"(end)
                 : "r4", "r5", "r6", "r8", "r9", "r10", "r11", "r12", "cc",
                   "memory");
}

/* Return the CRC-16 of a block. Its polynomial P is x^16 + x^12 + x^5 + 1, and
 * P^8 is x^128 + x^96 + x^40 + 1. So the CRC stays the same if a word is
 * removed and added (XOR) 4, 11 and 16 bytes later. The macro removes a to d,
 * and puts the next words in their place, in 22 cycles: the loads follow each
 * other, which the compiler does not keep. The words may lie at any address. */
#define NEXT_WORDS(at)                                                         \
  "ldr %[e], [%[block], #" #at "]\n"                                           \
  "ldr %[f], [%[block], #" #at " + 4]\n"                                       \
  "ldr %[g], [%[block], #" #at " + 8]\n"                                       \
  "ldr %[h], [%[block], #" #at " + 12]\n"                                      \
  "eor %[b], %[a]\n"                                                           \
  "eor %[c], %[b]\n"                                                           \
  "eor %[c], %[c], %[a], lsl #24\n"                                            \
  "eor %[d], %[c]\n"                                                           \
  "eor %[d], %[d], %[b], lsl #24\n"                                            \
  "eor %[d], %[d], %[a], lsr #8\n"                                             \
  "eor %[a], %[e]\n"                                                           \
  "eor %[a], %[d]\n"                                                           \
  "eor %[a], %[a], %[c], lsl #24\n"                                            \
  "eor %[a], %[a], %[b], lsr #8\n"                                             \
  "eor %[b], %[f]\n"                                                           \
  "eor %[b], %[b], %[d], lsl #24\n"                                            \
  "eor %[b], %[b], %[c], lsr #8\n"                                             \
  "eor %[c], %[g]\n"                                                           \
  "eor %[c], %[c], %[d], lsr #8\n"                                             \
  "eor %[d], %[h]\n"

/* Remove the word before `second`, whose highest bit is the first on the wire:
 * x^32 becomes x^24 + x^10 + 1, as P^2 is their sum. The bits that a shift to
 * the left drops count in the first word, so they are added to it before. */
static inline uint32_t without_first(uint32_t first, uint32_t second) {
  first ^= first >> 8 ^ first >> 16 ^ first >> 22 ^ first >> 24;
  return second ^ first ^ first << 10 ^ first << 24;
}

static uint16_t block_crc(const uint8_t *block) {
  uint32_t a = 0, b = 0, c = 0, d = 0, e, f, g, h;
  const uint8_t *end = block + POET_BLOCK;
  __asm("1:\n" NEXT_WORDS(0) NEXT_WORDS(16) NEXT_WORDS(32)
            NEXT_WORDS(48) "add %[block], #64\n"
                           "cmp %[block], %[end]\n"
                           "bne 1b\n"
        : [block] "+r"(block), [a] "+r"(a), [b] "+r"(b), [c] "+r"(c),
          [d] "+r"(d), [e] "=&r"(e), [f] "=&r"(f), [g] "=&r"(g), [h] "=&r"(h)
        : [end] "r"(end)
        : "cc", "memory");
  uint32_t word = without_first(__builtin_bswap32(a), __builtin_bswap32(b));
  word = without_first(word, __builtin_bswap32(c));
  word = without_first(word, __builtin_bswap32(d));
  word = without_first(word >> 16, word << 16);
  uint32_t high = word >> 16;
  high ^= high >> 4 ^ high >> 8 ^ high >> 11 ^ high >> 12;
  return (uint16_t)(word ^ high ^ high << 5 ^ high << 12);
}

void chip_spi_send_block(uint8_t token, const uint8_t *out) {
  uint8_t *to = bounce + PAD;
  to[0] = 0xff;
  to[1] = token;
  copy_block(to + 2, out);
  start(2 + POET_BLOCK, NULL, 0);
  received = NULL;
  crc = block_crc(out);
}

void chip_spi_receive_block(uint8_t *in, const uint8_t *from, uint32_t have) {
  /* Copy words. The last may have up to three bytes that DMA replaces. */
  for (uint32_t at = 0; at < have; at += sizeof(uint32_t)) {
    uint32_t word;
    memcpy(&word, from + at, sizeof word);
    memcpy(in + at, &word, sizeof word);
  }
  received = in;
  start(0, in + have, POET_BLOCK - have);
}

uint16_t chip_spi_crc(void) {
  return received ? block_crc(received) : crc;
}

uint32_t chip_crc(uint32_t crc32, const void *data, uint32_t size) {
  return poet_crc(crc32, data, size);
}

bool chip_spi_moves(void) {
  return SPIM_EVENTS_STARTED;
}

void spim3_handler(void) {
  SPIM_EVENTS_STARTED = 0;
  SPIM_EVENTS_END = 0;
  card_exchanged();
}

void nrf52840_spi_start(void) {
  chip_spi_select(false);
  P1_DIRSET = 1u << SELECT_PIN;
  /* 16 MHz needs a high drive. SCK's input buffer must be connected. Without
   * the pull-up, MISO floats while no card drives it. */
  P1_PIN_CNF(SCK_PIN) = PIN_CNF_OUTPUT | PIN_CNF_HIGH_DRIVE;
  P1_PIN_CNF(MOSI_PIN) = PIN_CNF_OUTPUT | PIN_CNF_HIGH_DRIVE;
  P1_PIN_CNF(MISO_PIN) = PIN_CNF_PULL_UP;
  SPIM_PSEL_SCK = PORT_1 + SCK_PIN;
  SPIM_PSEL_MOSI = PORT_1 + MOSI_PIN;
  SPIM_PSEL_MISO = PORT_1 + MISO_PIN;
  SPIM_ORC = 0xff;
  SPIM_FREQUENCY = SPIM_250KHZ;
  SPIM_ENABLE = SPIM_ENABLED;
  SPIM_INTENSET = SPIM_INT_END;
  nrf52840_interrupt(IRQ_SPIM3, LANE_PRIORITY);
}
