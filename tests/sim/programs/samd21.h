/* Registers of the SAM D21 that the test programs use, and the way to 48 MHz.
 */
#pragma once

#include "test.h"

#define PM_APBCMASK REG32(0x40000420)
#define SYSCTRL_PCLKSR REG32(0x4000080c)
#define SYSCTRL_XOSC32K REG16(0x40000814)
#define SYSCTRL_DFLLCTRL REG16(0x40000824)
#define SYSCTRL_DFLLMUL REG32(0x4000082c)
#define GCLK_STATUS REG8(0x40000c01)
#define GCLK_CLKCTRL REG16(0x40000c02)
#define GCLK_GENCTRL REG32(0x40000c04)
#define GCLK_GENDIV REG32(0x40000c08)
#define NVM_CTRLB REG32(0x41004004)
#define PORT(offset) REG32(0x41004400 + (offset))
#define PORT8(offset) REG8(0x41004400 + (offset))
#define SERCOM(n, offset) REG32(0x42000800 + 0x400 * (n) + (offset))
#define SERCOM16(n, offset) REG16(0x42000800 + 0x400 * (n) + (offset))
#define SERCOM8(n, offset) REG8(0x42000800 + 0x400 * (n) + (offset))
#define TC16(n, offset) REG16(0x42002c00 + 0x400 * ((n) - 3) + (offset))
#define TC8(n, offset) REG8(0x42002c00 + 0x400 * ((n) - 3) + (offset))
#define TC32(n, offset) REG32(0x42002c00 + 0x400 * ((n) - 3) + (offset))
#define DMAC16(offset) REG16(0x41004800 + (offset))
#define DMAC32(offset) REG32(0x41004800 + (offset))
#define DMAC8(offset) REG8(0x41004800 + (offset))

enum { CTRLA = 0, CTRLB = 4, BAUD = 0xc, INTENSET = 0x16, INTFLAG = 0x18 };
enum { SYNCBUSY = 0x1c, DATA = 0x28 };

static inline void gclk_sync(void) {
  while (GCLK_STATUS & 0x80)
    ;
}

static inline void dfll_sync(void) {
  while (!(SYSCTRL_PCLKSR & 1 << 4))
    ;
}

static inline void clock_channel(unsigned channel, unsigned generator) {
  GCLK_CLKCTRL = (uint16_t)(channel | generator << 8 | 1u << 14);
  gclk_sync();
}

static inline void clock_48mhz(void) {
  NVM_CTRLB = 1 << 1;
  SYSCTRL_XOSC32K = 1 << 8 | 1 << 3 | 1 << 2; /* 32 cycles, 32 kHz, crystal */
  SYSCTRL_XOSC32K |= 1 << 1;
  while (!(SYSCTRL_PCLKSR & 1 << 1))
    ;
  GCLK_GENDIV = 1;
  gclk_sync();
  GCLK_GENCTRL = 1 | 5 << 8 | 1 << 16;
  gclk_sync();
  clock_channel(0, 1);
  SYSCTRL_DFLLCTRL = 1 << 1;
  dfll_sync();
  SYSCTRL_DFLLMUL = 1465;
  dfll_sync();
  SYSCTRL_DFLLCTRL = 1 << 1 | 1 << 2;
  while ((SYSCTRL_PCLKSR & 3 << 6) != 3 << 6)
    ;
  GCLK_GENDIV = 0;
  gclk_sync();
  GCLK_GENCTRL = 0 | 7 << 8 | 1 << 16;
  gclk_sync();
  GCLK_GENDIV = 3 | 3 << 8; /* generator 3: 16 MHz for the timers */
  gclk_sync();
  GCLK_GENCTRL = 3 | 7 << 8 | 1 << 16;
  gclk_sync();
}

static inline void pin_function(unsigned pin, unsigned function) {
  unsigned group = 0x80 * (pin / 32), n = pin % 32;
  uint8_t mux = PORT8(group + 0x30 + n / 2);
  mux = n % 2 ? (uint8_t)((mux & 15) | function << 4)
              : (uint8_t)((mux & 0xf0) | function);
  PORT8(group + 0x30 + n / 2) = mux;
  PORT8(group + 0x40 + n) = 1;
}

static inline void sercom_clock(unsigned n) {
  PM_APBCMASK |= 1u << (2 + n);
  clock_channel(0x14 + n, 0);
}

/* SERCOM5 on PB22, PB23 at 1 Mbaud. */
static inline void uart_start(void) {
  sercom_clock(5);
  pin_function(32 + 22, 3);
  pin_function(32 + 23, 3);
  SERCOM(5, CTRLB) = 3u << 16;
  SERCOM16(5, BAUD) = 3;
  SERCOM(5, CTRLA) = 1u << 2 | 1u << 13 | 1u << 16 | 3u << 20 | 1u << 30;
  SERCOM(5, CTRLA) |= 2;
  while (SERCOM(5, SYNCBUSY))
    ;
}

/* SERCOM1 on PA16, PA17, PA19; the card's select is PB10. */
static inline void spi_start(unsigned baud) {
  sercom_clock(1);
  pin_function(16, 2);
  pin_function(17, 2);
  pin_function(19, 2);
  PORT8(0x40 + 16) = PORT8(0x40 + 17) = 0x41; /* strong */
  PORT(0x18) = 1u << 19;                      /* MISO: pull-up */
  PORT8(0x40 + 19) = 5;
  SERCOM(1, CTRLA) &= ~2u;
  SERCOM(1, CTRLB) = 1u << 17;
  SERCOM8(1, BAUD) = (uint8_t)baud;
  SERCOM(1, CTRLA) = 3u << 2 | 3u << 20;
  SERCOM(1, CTRLA) |= 2;
  while (SERCOM(1, SYNCBUSY))
    ;
}

static inline uint8_t spi_swap(uint8_t byte) {
  while (!(SERCOM8(1, INTFLAG) & 1))
    ;
  SERCOM(1, DATA) = byte;
  while (!(SERCOM8(1, INTFLAG) & 4))
    ;
  return (uint8_t)SERCOM(1, DATA);
}

static inline uint8_t sd_command(unsigned index, uint32_t argument,
                                 uint8_t crc) {
  spi_swap(0xff);
  spi_swap((uint8_t)(0x40 | index));
  for (int shift = 24; shift >= 0; shift -= 8)
    spi_swap((uint8_t)(argument >> shift));
  spi_swap(crc);
  for (int i = 0; i < 9; i++) {
    uint8_t answer = spi_swap(0xff);
    if (answer != 0xff)
      return answer;
  }
  return 0xff;
}

/* Brings the card up; returns the OCR's upper half, 0 if it does not answer. */
static inline uint32_t sd_start(void) {
  PORT(0x98) = 3u << 10; /* PB10, PB11: card and other device deselected */
  PORT(0x88) = 3u << 10;
  spi_start(119); /* 200 kHz */
  for (int i = 0; i < 10; i++)
    spi_swap(0xff);
  PORT(0x94) = 1u << 10;
  if (sd_command(0, 0, 0x95) != 1 || sd_command(8, 0x1aa, 0x87) != 1)
    return 0;
  for (int i = 0; i < 4; i++)
    spi_swap(0xff);
  do
    sd_command(55, 0, 1);
  while (sd_command(41, 1u << 30, 1));
  if (sd_command(58, 0, 1))
    return 0;
  uint32_t ocr = 0;
  for (int i = 0; i < 4; i++)
    ocr = ocr << 8 | spi_swap(0xff);
  PORT(0x98) = 1u << 10;
  spi_swap(0xff);
  spi_start(1); /* 12 MHz */
  PORT(0x94) = 1u << 10;
  return ocr;
}
