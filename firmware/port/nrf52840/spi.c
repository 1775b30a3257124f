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

static uint32_t word_at(const uint8_t *bytes) {
  uint32_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

/* Return the CRC-16 of a block. Its polynomial P is x^16 + x^12 + x^5 + 1, and
 * P^8 is x^128 + x^96 + x^40 + 1. So the CRC stays the same if a word is
 * removed and added (XOR) 4, 11 and 16 bytes later. */
static uint16_t block_crc(const uint8_t *block) {
  uint32_t a = word_at(block), b = word_at(block + 4), c = word_at(block + 8),
           d = word_at(block + 12);
  for (const uint8_t *end = block + POET_BLOCK; (block += 16) < end;) {
    const uint32_t e = word_at(block), f = word_at(block + 4),
                   g = word_at(block + 8), h = word_at(block + 12);
    b ^= a;
    c ^= a << 24 ^ b;
    d ^= a >> 8 ^ b << 24 ^ c;
    a ^= b >> 8 ^ c << 24 ^ d ^ e;
    b ^= c >> 8 ^ d << 24 ^ f;
    c ^= d >> 8 ^ g;
    d ^= h;
  }
  const uint32_t rest[4] = {a, b, c, d};
  return sd_bus_crc(0, (const uint8_t *)rest, sizeof rest);
}

void chip_spi_send_block(uint8_t token, const uint8_t *out) {
  uint8_t *to = bounce + PAD;
  to[0] = 0xff;
  to[1] = token;
  to += 2;
  for (const uint8_t *from = out, *end = out + POET_BLOCK; from < end;
       from += 16, to += 16) {
    const uint32_t a = word_at(from), b = word_at(from + 4),
                   c = word_at(from + 8), d = word_at(from + 12);
    memcpy(to, &a, sizeof a);
    memcpy(to + 4, &b, sizeof b);
    memcpy(to + 8, &c, sizeof c);
    memcpy(to + 12, &d, sizeof d);
  }
  start(2 + POET_BLOCK, NULL, 0);
  received = NULL;
  crc = block_crc(out);
}

void chip_spi_receive_block(uint8_t *in, uint32_t have) {
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
