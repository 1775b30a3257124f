/* samd21.h - the state of all models of the SAM D21. Section numbers are those
   of the data sheet DS40001882D. */
#pragma once

#include "machine.h"
#include "sdcard.h"

#define SAMD21_HZ 48000000u

enum {
  SAMD21_SERCOMS = 6,
  SAMD21_TCS = 3, /* TC3, TC4, TC5 */
  SAMD21_CHANNELS = 12,
  SAMD21_GENERATORS = 9,
  SAMD21_CLOCKS = 37, /* generic clock channels */
  SAMD21_ENDPOINTS = 8,
  SAMD21_PAGE_BYTES = 64,  /* of flash */
  SAMD21_DFLL_COARSE = 31, /* plausible: the calibration of the DFLL */
};

/* Bits of PM.APBCMASK and PM.APBBMASK (16.8.10, 16.8.11). */
enum {
  APBC_SERCOM0 = 2,
  APBC_TC3 = 11,
  APBB_NVMCTRL = 2,
  APBB_PORT = 3,
  APBB_DMAC = 4,
};

struct samd21;

struct samd21_clock { /* PM, SYSCTRL, GCLK */
  struct samd21 *chip;
  uint32_t ahb_mask, apb_mask[3];
  uint8_t cpu_divider_log2;
  uint32_t gen_control[SAMD21_GENERATORS], gen_divider[SAMD21_GENERATORS];
  uint16_t clock_control[64];
  uint16_t dfll_control, xosc32k;
  uint32_t dfll_value, dfll_multiplier, osc8m;
  uint32_t bod33;
  uint64_t xosc32k_ready_at, dfll_busy_until, dfll_locked_at, gclk_busy_until;
  uint64_t bod_busy_until;
};

struct samd21_wdt {
  struct samd21 *chip;
  uint8_t control, config, warning_offset, enabled_interrupts, flags;
  uint64_t busy_until;
  struct event warning, bite;
};

struct samd21_nvm {
  uint32_t control_b, address; /* `address` counts 16-bit words */
  uint16_t command, status, unlocked;
  uint8_t flags;
  uint32_t page; /* number of the page that the buffer is filled for */
  bool spent;    /* the buffer was written, and must be cleared */
  uint8_t buffer[SAMD21_PAGE_BYTES];
};

struct samd21_port { /* one group of pins */
  struct samd21 *chip;
  uint32_t dir, out;
  uint8_t mux[16], config[32];
};

enum i2c_phase { I2C_NOTHING, I2C_ADDRESS, I2C_SENDING, I2C_RECEIVING };

struct samd21_sercom {
  struct samd21 *chip;
  unsigned index;
  char name[12];
  uint32_t control_a, control_b;
  uint16_t baud, status;
  uint8_t enabled_interrupts, flags;
  uint64_t busy_until;    /* end of the synchronisation */
  bool holding, shifting; /* `held`, `shifter` contain a byte */
  uint8_t held, shifter;
  uint8_t received[2];
  unsigned received_count;
  struct event shifted, arriving;
  struct serial *serial; /* for a UART: its line */
  bool wired;            /* for SPI: connected to the card */
  uint8_t address;       /* of an I2C transfer, with its direction */
  enum i2c_phase phase;
  uint64_t next_arrival;
};

struct samd21_channel {
  struct samd21_dmac *dmac;
  uint8_t control_a, enabled_interrupts, flags, status;
  uint32_t control_b;
  bool linked;
  uint16_t block_control, beats_left;
  uint32_t source, destination, next;
};

struct samd21_dmac {
  struct samd21 *chip;
  uint16_t control, crc_control;
  uint32_t base, write_back;
  uint32_t crc; /* in the register's order of bits */
  uint64_t crc_busy_until;
  bool crc_busy; /* CRCSTATUS.CRCBUSY, with the I/O interface */
  uint8_t selected;
  struct samd21_channel channels[SAMD21_CHANNELS];
  struct event kick;
  uint32_t requests; /* software triggers that wait, by channel */
};

struct samd21_tc {
  struct samd21 *chip;
  unsigned index; /* 3, 4, 5 */
  char name[8];
  uint16_t control_a, read_request;
  uint8_t control_b, enabled_interrupts, flags, control_c;
  uint32_t compare[2], stopped_count, read_count;
  uint64_t started_at, busy_until, caught_up_at;
  bool running;
  struct event due[3]; /* overflow, compare 0, compare 1 */
};

struct samd21_endpoint {
  struct samd21_usb *usb;
  uint8_t config, status, flags, enabled_interrupts;
};

struct samd21_usb {
  struct samd21 *chip;
  struct usb_bus *bus;
  uint8_t control_a, quality, address, state, summary;
  uint16_t control_b, enabled_interrupts, flags, pads;
  uint32_t descriptors; /* address of the table in RAM */
  uint64_t busy_until;
  struct samd21_endpoint endpoints[SAMD21_ENDPOINTS];
  struct event idle;
};

struct samd21 {
  struct machine *m;
  struct samd21_clock clock;
  struct samd21_nvm nvm;
  struct samd21_wdt wdt;
  struct samd21_port ports[2];
  struct samd21_sercom sercoms[SAMD21_SERCOMS];
  struct samd21_dmac dmac;
  struct samd21_tc tcs[SAMD21_TCS];
  struct samd21_usb usb;
  struct samd21_config config;
  uint8_t auxiliary[0x10000]; /* calibration and serial number */
};

void samd21_clock_create(struct samd21 *chip);
/* Return the frequency of a generic clock channel, or 0 while it is off. */
uint32_t samd21_clock_hz(const struct samd21 *chip, unsigned channel);
/* Return true if the peripheral has its bus clock. If not, stop the machine. */
bool samd21_bus_clock(struct samd21 *chip, unsigned bus, unsigned bit,
                      const char *name);
void samd21_wdt_create(struct samd21 *chip);
void samd21_nvm_create(struct samd21 *chip);
/* Check the wait states after the core clock has changed. */
void samd21_nvm_check(void *chip);
void samd21_port_create(struct samd21 *chip);
/* Return true if the pin (32 * group + number) is connected to this function
   (0: A). */
bool samd21_pin_is(const struct samd21 *chip, unsigned pin, unsigned function);
bool samd21_pin_pulled_up(const struct samd21 *chip, unsigned pin);
bool samd21_pin_strong(const struct samd21 *chip, unsigned pin);
void samd21_sercom_create(struct samd21 *chip, unsigned index);
/* Accesses to a SERCOM's data register. */
uint32_t samd21_sercom_read(void *sercom);
bool samd21_sercom_write(void *sercom, uint32_t value);
bool samd21_sercom_requests(const struct samd21_sercom *sercom, bool transmit);
void samd21_dmac_create(struct samd21 *chip);
/* Call this after a trigger has become active. */
void samd21_dmac_kick(struct samd21 *chip);
void samd21_tc_create(struct samd21 *chip, unsigned position);
void samd21_usb_create(struct samd21 *chip);
