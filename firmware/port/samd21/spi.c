/*
 * spi.c - SAM D21: the card's SPI on SERCOM1, with two DMA channels.
 *
 * State: `base`, the DMA descriptors of the current exchange, and
 * `written_back`, where the controller keeps their progress. Both belong to the
 * controller from the start of an exchange to its interrupt. The controller's
 * CRC unit computes the CRC-16 of a block while DMA moves it. Between blocks it
 * computes CRC-32, of words that the processor writes.
 *
 * Order: descriptors and CRC are set before the channels are enabled. The
 * receiving channel is enabled first and has the lower number, which is the
 * higher priority, so that it never misses a byte. No descriptor links to
 * another, so erratum 1.7.2 does not apply.
 */
#include "chip.h"
#include "parts.h"
#include "pins.h"
#include "poet/poet.h"
#include "registers.h"

enum {
  SPI = 1,     /* SERCOM1: its pins are in pins.h */
  RECEIVE = 0, /* DMA channels */
  SEND = 1,
};

static struct dma_descriptor base[2] __attribute__((aligned(16)));
static struct dma_descriptor written_back[2] __attribute__((aligned(16)));
static const uint8_t ones = 0xff;
static uint8_t dropped;
const bool chip_crc_excludes_blocks = true;

uint16_t chip_spi_speed(unsigned level) {
  /* 24 MHz / kHz - 1; the last is the SERCOM's limit */
  static const struct {
    uint16_t khz;
    uint8_t baud;
  } speeds[] = {{400, 59}, {1000, 23}, {4000, 5}, {8000, 2}, {12000, 1}};
  SERCOM_CTRLA(SPI) &= ~SERCOM_ENABLE;
  while (SERCOM_SYNCBUSY(SPI)) {
  }
  SERCOM_BAUD8(SPI) = speeds[level].baud;
  SERCOM_CTRLA(SPI) |= SERCOM_ENABLE;
  while (SERCOM_SYNCBUSY(SPI)) {
  }
  return speeds[level].khz;
}

void chip_spi_select(bool selected) {
  if (selected) {
    PORT_OUTCLR(SELECT_GROUP) = 1u << SELECT_PIN;
  } else {
    PORT_OUTSET(SELECT_GROUP) = 1u << SELECT_PIN;
  }
}

static void channel(unsigned number, uint32_t trigger, unsigned interrupts) {
  DMAC_CHID = (uint8_t)number;
  DMAC_CHCTRLB = trigger | DMAC_ONE_BEAT;
  DMAC_CHINTENSET = (uint8_t)interrupts;
}

static void enable(unsigned number) {
  DMAC_CHID = (uint8_t)number;
  DMAC_CHCTRLA = DMAC_ENABLE;
}

static uint32_t address(const volatile void *pointer) {
  return (uint32_t)(uintptr_t)pointer;
}

/* Describe an exchange in which `sent` bytes more are received than DMA
 * sends. */
static void describe(const uint8_t *out, uint8_t *in, uint32_t size,
                     uint32_t sent) {
  base[RECEIVE] = (struct dma_descriptor){
      .control = (uint16_t)(BTCTRL_VALID | (in ? BTCTRL_DSTINC : 0)),
      .count = (uint16_t)(size + sent),
      .source = SERCOM_DATA_ADDRESS(SPI),
      .destination = in ? address(in + size) : address(&dropped)};
  base[SEND] = (struct dma_descriptor){
      .control = (uint16_t)(BTCTRL_VALID | (out ? BTCTRL_SRCINC : 0)),
      .count = (uint16_t)size,
      .source = out ? address(out + size) : address(&ones),
      .destination = SERCOM_DATA_ADDRESS(SPI)};
  chip_finish_stores();
  /* The CRC unit may be configured only while it is disabled. It keeps its
   * checksum. */
  DMAC_CTRL = DMAC_ENABLE | DMAC_LEVELS;
}

static void compute_crc(uint32_t control, uint32_t start) {
  DMAC_CRCCTRL = (uint16_t)control;
  DMAC_CRCCHKSUM = start;
  DMAC_CTRL = DMAC_ENABLE | DMAC_LEVELS | DMAC_CRCENABLE;
}

static void go(void) {
  enable(RECEIVE);
  enable(SEND);
}

void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size) {
  describe(out, in, size, 0);
  go();
}

/* The SERCOM holds two bytes, so it takes the first two before DMA starts. */
void chip_spi_send_block(uint8_t token, const uint8_t *out) {
  describe(out, NULL, POET_BLOCK, 2);
  compute_crc(DMAC_CRC_OF_CHANNEL(SEND), 0);
  enable(RECEIVE);
  SERCOM_DATA(SPI) = ones;
  while (!(SERCOM_INTFLAG(SPI) & SERCOM_DRE)) {
  }
  SERCOM_DATA(SPI) = token;
  enable(SEND);
}

/* The CRC unit takes the bytes that are there from the processor, then those
 * that DMA moves. */
void chip_spi_receive_block(uint8_t *in, const uint8_t *from, uint32_t have) {
  describe(NULL, in + have, POET_BLOCK - have, 0);
  compute_crc(DMAC_CRC_OF_BYTES, 0);
  for (const uint8_t *end = in + have; in < end; in++) {
    DMAC_CRCDATAIN = *in = *from++;
  }
  DMAC_CRCSTATUS = DMAC_CRCBUSY;
  DMAC_CTRL = DMAC_ENABLE | DMAC_LEVELS;
  compute_crc(DMAC_CRC_OF_CHANNEL(RECEIVE), DMAC_CRCCHKSUM);
  go();
}

/* A bus error disables the channel and sets TERR. */
bool chip_spi_moves(void) {
  DMAC_CHID = RECEIVE;
  return (DMAC_CHCTRLA & DMAC_ENABLE) | (DMAC_CHINTFLAG & DMAC_TERR);
}

uint16_t chip_spi_crc(void) {
  return (uint16_t)DMAC_CRCCHKSUM;
}

/* The unit needs four cycles for a word: those of its load and its store. It
 * starts from all ones, as CRC-32 does. XOR with the first word goes on with a
 * CRC: only state ^ word counts, and ~crc ^ word = ~0 ^ (crc ^ word). */
uint32_t chip_crc(uint32_t crc, const void *data, uint32_t size) {
  enum { AT_ONCE = 32 };
  const volatile uint32_t *word = data;
  const uint8_t *end = (const uint8_t *)data + size;
  if (size < AT_ONCE || (uintptr_t)data % sizeof *word) {
    return poet_crc(crc, data, size);
  }
  DMAC_CTRL = DMAC_ENABLE | DMAC_LEVELS;
  compute_crc(DMAC_CRC_OF_WORDS, UINT32_MAX);
  for (; size >= AT_ONCE; size -= AT_ONCE, word += 8) {
    DMAC_CRCDATAIN = word[0] ^ crc;
    crc = 0;
    DMAC_CRCDATAIN = word[1];
    DMAC_CRCDATAIN = word[2];
    DMAC_CRCDATAIN = word[3];
    DMAC_CRCDATAIN = word[4];
    DMAC_CRCDATAIN = word[5];
    DMAC_CRCDATAIN = word[6];
    DMAC_CRCDATAIN = word[7];
  }
  DMAC_CRCSTATUS = DMAC_CRCBUSY;
  return poet_crc(DMAC_CRCCHKSUM, end - size, size);
}

/* Only the receiving channel causes an interrupt, because it ends after the
 * sending channel. */
void dmac_handler(void) {
  DMAC_CHID = RECEIVE;
  DMAC_CHINTFLAG = DMAC_TCMPL;
  /* Call card_exchanged last, because it may start another exchange. */
  card_exchanged();
}

static void start_pins(void) {
  const uint32_t selects = 1u << SELECT_PIN | OTHER_SELECTS;
  PORT_OUTSET(SELECT_GROUP) = selects;
  PORT_DIRSET(SELECT_GROUP) = selects;
  /* A pull-up for MISO, which no card may drive. */
  PORT_OUTSET(0) = 1u << MISO_PIN | HIGH_PINS;
  PORT_DIRSET(0) = HIGH_PINS | LOW_PINS | 1u << LED_PIN;
  samd21_pin(MOSI_PIN, FUNCTION_C, PINCFG_DRVSTR);
  samd21_pin(SCK_PIN, FUNCTION_C, PINCFG_DRVSTR);
  samd21_pin(MISO_PIN, FUNCTION_C, PINCFG_PULLEN);
}

void samd21_spi_start(void) {
  PM_APBCMASK |= APBC_SERCOM(SPI);
  samd21_clock(GCLK_CHANNEL_SERCOM(SPI), 0);
  start_pins();
  SERCOM_CTRLB(SPI) = SERCOM_RXEN;
  SERCOM_CTRLA(SPI) =
      SERCOM_SPI_HOST | SERCOM_OUTPUT(SPI_OUTPUT) | SERCOM_INPUT(SPI_INPUT);
  (void)chip_spi_speed(0); /* enables it */
  DMAC_BASEADDR = address(base);
  DMAC_WRBADDR = address(written_back);
  DMAC_CTRL = DMAC_ENABLE | DMAC_LEVELS;
  channel(RECEIVE, DMAC_TRIGGER_SERCOM_RX(SPI), DMAC_TCMPL);
  channel(SEND, DMAC_TRIGGER_SERCOM_TX(SPI), 0);
  samd21_interrupt(IRQ_DMAC, LANE_PRIORITY);
}
