/*
 * spi.c - nRF52840: the card's SPI on SPIM3, at 16 MHz.
 *
 * State: `bounce`, the bytes being sent, and `last`, the bytes whose CRC
 * chip_spi_crc computes afterwards. Both are valid until the next call of
 * chip_spi_exchange.
 *
 * Anomaly 198: SPIM3 may send wrong data while another master uses the same RAM
 * block. So bytes to send are copied to `bounce`, alone in a block of its own.
 * Received bytes go directly to their destination: then SPIM3 sends only its
 * over-read character, which does not come from RAM.
 */
#include <string.h>

#include "chip.h"
#include "parts.h"
#include "registers.h"

enum {
  SCK_PIN = 47,    /* P1.15 */
  MOSI_PIN = 45,   /* P1.13 */
  MISO_PIN = 46,   /* P1.14 */
  SELECT_PIN = 12, /* P1.12 */
};

static uint8_t bounce[CHIP_EXCHANGE_MAX]
    __attribute__((section(".spim3"), aligned(4)));

static struct {
  const uint8_t *bytes; /* whose CRC chip_spi_crc returns */
  uint32_t size;
  uint16_t crc;
} last;

void chip_spi_speed(bool fast) {
  SPIM_FREQUENCY = fast ? SPIM_16MHZ : SPIM_250KHZ;
}

void chip_spi_select(bool selected) {
  if (selected) {
    P1_OUTCLR = 1u << SELECT_PIN;
  } else {
    P1_OUTSET = 1u << SELECT_PIN;
  }
}

void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size,
                       uint16_t crc) {
  last.bytes = out ? out : in;
  last.size = size;
  last.crc = crc;
  if (out) {
    memcpy(bounce, out, size);
  } else if (!in) {
    /* If both `out` and `in` are NULL, send bytes 0xff. */
    memset(bounce, 0xff, size);
  }
  SPIM_TXD_PTR = (uint32_t)(uintptr_t)bounce;
  SPIM_TXD_MAXCNT = out || !in ? size : 0;
  SPIM_RXD_PTR = (uint32_t)(uintptr_t)in;
  SPIM_RXD_MAXCNT = in ? size : 0;
  SPIM_EVENTS_END = 0; /* clear the event before the exchange, which sets it */
  SPIM_TASKS_START = 1;
}

/* CRC-16 (x^16 + x^12 + x^5 + 1): ONE(b) is the CRC of the byte b, TWO(b) is
 * the CRC of b and a zero byte. */
#define FOLDED(t) ((uint16_t)((t) << 12 ^ (t) << 5 ^ (t)))
#define ONE(b) FOLDED((b) ^ (b) >> 4)
#define TWO(b) ((uint16_t)(ONE(b) << 8 ^ ONE(ONE(b) >> 8)))
#define ROW4(f, b) f(b), f((b) + 1), f((b) + 2), f((b) + 3)
#define ROW16(f, b)                                                            \
  ROW4(f, b), ROW4(f, (b) + 4), ROW4(f, (b) + 8), ROW4(f, (b) + 12)
#define ROW64(f, b)                                                            \
  ROW16(f, b), ROW16(f, (b) + 16), ROW16(f, (b) + 32), ROW16(f, (b) + 48)
#define TABLE(f) ROW64(f, 0), ROW64(f, 64), ROW64(f, 128), ROW64(f, 192)

static const uint16_t one[256] = {TABLE(ONE)};
static const uint16_t two[256] = {TABLE(TWO)};

/* Process two bytes per iteration, with two independent look-ups. */
uint16_t chip_spi_crc(void) {
  const uint8_t *byte = last.bytes, *end = byte + (last.size & ~1u);
  uint32_t crc = last.crc;
  for (; byte < end; byte += 2) {
    crc = (uint32_t)two[crc >> 8 ^ byte[0]] ^ one[(crc & 0xff) ^ byte[1]];
  }
  if (last.size & 1) {
    crc = (crc << 8 & 0xff00) ^ one[crc >> 8 ^ *byte];
  }
  return (uint16_t)crc;
}

void spim3_handler(void) {
  SPIM_EVENTS_END = 0;
  card_exchanged();
}

void nrf52840_spi_start(void) {
  chip_spi_select(false);
  P1_DIRSET = 1u << SELECT_PIN;
  SPIM_PSEL_SCK = SCK_PIN;
  SPIM_PSEL_MOSI = MOSI_PIN;
  SPIM_PSEL_MISO = MISO_PIN;
  SPIM_ORC = 0xff;
  SPIM_FREQUENCY = SPIM_250KHZ;
  SPIM_ENABLE = SPIM_ENABLED;
  SPIM_INTENSET = SPIM_INT_END;
  nrf52840_interrupt(IRQ_SPIM3, LANE_PRIORITY);
}
