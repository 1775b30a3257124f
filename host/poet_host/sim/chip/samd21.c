/* samd21.c - the ATSAMD21G18A as a whole: its memory map (section 11, table
   12-1). State: struct samd21, which owns the models of all peripherals. An
   access to a peripheral without a model stops the machine with its name. */
#include "samd21.h"

#include <stdlib.h>
#include <string.h>

#include "sdcard.h"

enum { FLASH_BYTES = 256 * 1024, RAM_BYTES = 32 * 1024 };

static const struct region unmodelled[] = {
    {.name = "RTC", .base = 0x40001400, .size_bytes = 0x400},
    {.name = "EIC", .base = 0x40001800, .size_bytes = 0x400},
    {.name = "PAC", .base = 0x40000000, .size_bytes = 0x400},
    {.name = "PAC1 or DSU", .base = 0x41000000, .size_bytes = 0x4000},
    {.name = "MTB", .base = 0x41006000, .size_bytes = 0x1000},
    {.name = "PAC2", .base = 0x42000000, .size_bytes = 0x400},
    {.name = "EVSYS", .base = 0x42000400, .size_bytes = 0x400},
    {.name = "TCC0, TCC1 or TCC2", .base = 0x42002000, .size_bytes = 0xc00},
    {.name = "TC6 or TC7", .base = 0x42003800, .size_bytes = 0x800},
    {.name = "ADC", .base = 0x42004000, .size_bytes = 0x400},
    {.name = "AC", .base = 0x42004400, .size_bytes = 0x400},
    {.name = "DAC", .base = 0x42004800, .size_bytes = 0x400},
    {.name = "PTC", .base = 0x42004c00, .size_bytes = 0x400},
    {.name = "I2S", .base = 0x42005000, .size_bytes = 0x400},
    {0}};

/* Fill in the calibration row and the serial number (sections 10.3.2 and
   10.3.3). */
static void fill_auxiliary(struct samd21 *chip) {
  /* plausible calibration of USB: TRANSN is 9, TRANSP is 25, TRIM is 6 */
  static const uint32_t pads =
      9 << 13 | 25 << 18 | 6 << 23 | (uint32_t)SAMD21_DFLL_COARSE << 26;
  static const uint32_t words[4] = {0x0080a00c, 0x0080a040, 0x0080a044,
                                    0x0080a048};
  memset(chip->auxiliary, 0xff, sizeof chip->auxiliary);
  memcpy(chip->auxiliary + 0x6024, &pads, 4);
  for (unsigned i = 0; i < 4; i++)
    memcpy(chip->auxiliary + (words[i] - 0x00800000),
           &chip->config.serial_number[i], 4);
  uc_mem_map_ptr(chip->m->uc, 0x00800000, sizeof chip->auxiliary, UC_PROT_READ,
                 chip->auxiliary);
}

struct machine *samd21_new(const struct samd21_config *config,
                           struct sdcard *card) {
  struct samd21 *chip = calloc(1, sizeof *chip);
  struct machine *m = machine_create(CORE_M0PLUS, FLASH_BYTES, 0x20000000,
                                     RAM_BYTES, SAMD21_HZ);
  chip->m = m;
  chip->config = *config;
  m->card = card;
  if (card)
    sdcard_new_host(card);
  m->chip = chip;
  m->unmodelled = unmodelled;
  machine_window(m, 0x40000000, 0x10000);
  machine_window(m, 0x41000000, 0x10000);
  machine_window(m, 0x42000000, 0x10000);
  machine_window(m, 0x60000000, 0x1000);
  samd21_clock_create(chip);
  samd21_wdt_create(chip);
  samd21_nvm_create(chip);
  samd21_port_create(chip);
  samd21_dmac_create(chip);
  for (unsigned i = 0; i < SAMD21_SERCOMS; i++)
    samd21_sercom_create(chip, i);
  for (unsigned i = 0; i < SAMD21_TCS; i++)
    samd21_tc_create(chip, i);
  samd21_usb_create(chip);
  fill_auxiliary(chip);
  return m;
}
