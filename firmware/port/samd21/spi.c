/*
 * spi.c - SAM D21: the card's SPI on SERCOM1, with two DMA channels.
 *
 * State: `base`, the DMA descriptors of the current exchange, and
 * `written_back`, where the controller keeps their progress. Both belong to the
 * controller from chip_spi_exchange to its interrupt.
 *
 * Order: descriptors and CRC are set before the channels are enabled. The
 * receiving channel is enabled first and has the lower number, which is the
 * higher priority, so that it never misses a byte. No descriptor links to
 * another, so erratum 1.7.2 does not apply.
 */
#include "chip.h"
#include "parts.h"
#include "registers.h"

enum {
  SPI = 1, /* SERCOM1: PA16 MOSI (pad 0), PA17 SCK, PA19 MISO (pad 3) */
  SELECT_GROUP = 1,
  SELECT_PIN = 10, /* PB10 */
  BAUD_SLOW = 59,  /* 48 MHz / 2 / 60: 400 kHz */
  BAUD_FAST = 1,   /* 12 MHz, the SERCOM's limit */
  RECEIVE = 0,     /* DMA channels */
  SEND = 1,
};

static struct dma_descriptor base[2] __attribute__((aligned(16)));
static struct dma_descriptor written_back[2] __attribute__((aligned(16)));
static const uint8_t ones = 0xff;
static uint8_t dropped;

void chip_spi_speed(bool fast) {
  SERCOM_CTRLA(SPI) &= ~SERCOM_ENABLE;
  while (SERCOM_SYNCBUSY(SPI)) {
  }
  SERCOM_BAUD8(SPI) = fast ? BAUD_FAST : BAUD_SLOW;
  SERCOM_CTRLA(SPI) |= SERCOM_ENABLE;
  while (SERCOM_SYNCBUSY(SPI)) {
  }
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

void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size,
                       uint16_t crc) {
  base[RECEIVE] = (struct dma_descriptor){
      .control = (uint16_t)(BTCTRL_VALID | (in ? BTCTRL_DSTINC : 0)),
      .count = (uint16_t)size,
      .source = SERCOM_DATA_ADDRESS(SPI),
      .destination = in ? address(in + size) : address(&dropped)};
  base[SEND] = (struct dma_descriptor){
      .control = (uint16_t)(BTCTRL_VALID | (out ? BTCTRL_SRCINC : 0)),
      .count = (uint16_t)size,
      .source = out ? address(out + size) : address(&ones),
      .destination = SERCOM_DATA_ADDRESS(SPI)};
  /* The CRC unit may be configured only while it is disabled. */
  DMAC_CTRL &= (uint16_t)~DMAC_CRCENABLE;
  DMAC_CRCCTRL = (uint16_t)DMAC_CRC_OF_CHANNEL(out ? SEND : RECEIVE);
  DMAC_CRCCHKSUM = crc;
  DMAC_CTRL |= DMAC_CRCENABLE;
  enable(RECEIVE);
  enable(SEND);
}

uint16_t chip_spi_crc(void) {
  return (uint16_t)DMAC_CRCCHKSUM;
}

/* Only the receiving channel causes an interrupt, because it ends after the
 * sending channel. */
void dmac_handler(void) {
  DMAC_CHID = RECEIVE;
  DMAC_CHINTFLAG = DMAC_TCMPL;
  /* Call card_exchanged last, because it may start another exchange. */
  card_exchanged();
}

void samd21_spi_start(void) {
  PM_APBCMASK |= APBC_SERCOM(SPI);
  samd21_clock(GCLK_CHANNEL_SERCOM(SPI), 0);
  samd21_pin(16, FUNCTION_C);
  samd21_pin(17, FUNCTION_C);
  samd21_pin(19, FUNCTION_C);
  chip_spi_select(false);
  PORT_DIRSET(SELECT_GROUP) = 1u << SELECT_PIN;
  SERCOM_CTRLB(SPI) = SERCOM_RXEN;
  SERCOM_CTRLA(SPI) = SERCOM_SPI_HOST | SERCOM_OUTPUT(0) | SERCOM_INPUT(3);
  chip_spi_speed(false); /* enables it */
  DMAC_BASEADDR = address(base);
  DMAC_WRBADDR = address(written_back);
  DMAC_CTRL = DMAC_ENABLE | DMAC_LEVELS;
  channel(RECEIVE, DMAC_TRIGGER_SERCOM_RX(SPI), DMAC_TCMPL);
  channel(SEND, DMAC_TRIGGER_SERCOM_TX(SPI), 0);
  samd21_interrupt(IRQ_DMAC, LANE_PRIORITY);
}
