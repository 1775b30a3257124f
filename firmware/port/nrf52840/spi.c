/* nRF52840: the card's SPI, SPIM3 at 16 MHz. What it sends lies in a RAM block
 * in which nothing else lies, because of anomaly 198; what it receives goes
 * straight to its place, since then it only sends its over-read character. */
#include <string.h>

#include "chip.h"
#include "parts.h"
#include "registers.h"

enum {
  SCK_PIN = 47,    /* P1.15 */
  MOSI_PIN = 45,   /* P1.13 */
  MISO_PIN = 46,   /* P1.14 */
  SELECT_PIN = 12, /* P1.12 */
  LANE_PRIORITY = 0x80,
};

static uint8_t bounce[CHIP_EXCHANGE_MAX]
    __attribute__((section(".spim3"), aligned(4)));

static struct {
  const uint8_t *bytes; /* whose CRC is asked for */
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
  }
  SPIM_TXD_PTR = (uint32_t)(uintptr_t)bounce;
  SPIM_TXD_MAXCNT = out ? size : 0;
  SPIM_RXD_PTR = (uint32_t)(uintptr_t)in;
  SPIM_RXD_MAXCNT = in ? size : 0;
  SPIM_EVENTS_END = 0;
  SPIM_TASKS_START = 1;
}

/* CRC-16 of x^16 + x^12 + x^5 + 1, a byte at a time without a table. */
uint16_t chip_spi_crc(void) {
  uint32_t crc = last.crc;
  for (uint32_t i = 0; i < last.size; i++) {
    uint32_t t = (crc >> 8 ^ last.bytes[i]) & 0xff;
    t ^= t >> 4;
    crc = (crc << 8 ^ t << 12 ^ t << 5 ^ t) & 0xffff;
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
