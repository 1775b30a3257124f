/* nrf52840.c - the nRF52840 as a whole: its memory map (chapters "Memory" and
   "Instantiation"). State: struct nrf52840, which owns the models of all
   peripherals. An access to a peripheral without a model stops the machine with
   its name. */
#include "nrf52840.h"

#include <stdlib.h>
#include <string.h>

#include "sdcard.h"

enum { FLASH_BYTES = 1024 * 1024, RAM_BYTES = 256 * 1024 };

static const struct region unmodelled[] = {
    {.name = "RADIO", .base = 0x40001000, .size_bytes = 0x1000},
    {.name = "SPIM0 or TWIM0", .base = 0x40003000, .size_bytes = 0x1000},
    {.name = "SPIM1 or TWIM1", .base = 0x40004000, .size_bytes = 0x1000},
    {.name = "NFCT", .base = 0x40005000, .size_bytes = 0x1000},
    {.name = "GPIOTE", .base = 0x40006000, .size_bytes = 0x1000},
    {.name = "SAADC", .base = 0x40007000, .size_bytes = 0x1000},
    {.name = "RTC0", .base = 0x4000b000, .size_bytes = 0x1000},
    {.name = "TEMP", .base = 0x4000c000, .size_bytes = 0x1000},
    {.name = "RNG", .base = 0x4000d000, .size_bytes = 0x1000},
    {.name = "ECB, AAR or CCM", .base = 0x4000e000, .size_bytes = 0x2000},
    {.name = "RTC1", .base = 0x40011000, .size_bytes = 0x1000},
    {.name = "TIMER3 or TIMER4", .base = 0x4001a000, .size_bytes = 0x2000},
    {.name = "PWM, PDM, ACL or PPI", .base = 0x4001c000, .size_bytes = 0x2000},
    {.name = "PPI", .base = 0x4001f000, .size_bytes = 0x1000},
    {.name = "UARTE1", .base = 0x40028000, .size_bytes = 0x1000},
    {.name = "QSPI", .base = 0x40029000, .size_bytes = 0x1000},
    {0}};

/* Fill in FICR with DEVICEID at 0x060. UICR stays erased. */
static void fill_factory(struct nrf52840 *chip) {
  memset(chip->factory, 0xff, sizeof chip->factory);
  memcpy(chip->factory + 0x60, chip->config.device_id, 8);
  uc_mem_map_ptr(chip->m->uc, 0x10000000, sizeof chip->factory, UC_PROT_READ,
                 chip->factory);
}

struct machine *nrf52840_new(const struct nrf52840_config *config,
                             struct sdcard *card) {
  struct nrf52840 *chip = calloc(1, sizeof *chip);
  struct machine *m =
      machine_create(CORE_M4F, FLASH_BYTES, 0x20000000, RAM_BYTES, NRF52840_HZ);
  chip->m = m;
  chip->config = *config;
  m->card = card;
  if (card)
    sdcard_new_host(card);
  m->chip = chip;
  m->unmodelled = unmodelled;
  machine_window(m, 0x40000000, 0x30000);
  machine_window(m, 0x50000000, 0x1000);
  m->lock_up_resets = true;
  nrf_power_create(chip);
  nrf_wdt_create(chip);
  nrf_nvmc_create(chip);
  nrf_gpio_create(chip);
  nrf_uarte_create(chip);
  nrf_usbd_create(chip);
  for (unsigned i = 0; i < NRF_SPIMS; i++)
    nrf_spim_create(chip, i);
  for (unsigned i = 0; i < NRF_TIMERS; i++)
    nrf_timer_create(chip, i);
  fill_factory(chip);
  return m;
}
