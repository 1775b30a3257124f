/* nrf52840.c - the nRF52840 as a whole: its memory map (chapters "Memory" and
   "Instantiation"). State: struct nrf52840, which owns the models of all
   peripherals. An access to a peripheral without a model stops the machine with
   its name. */
#include "nrf52840.h"

#include <stdlib.h>
#include <string.h>

#include "sdcard.h"

enum {
  FICR_PART = 0x130,
  FICR_VARIANT = 0x134,
  UICR_APPROTECT = 0x1208,
  REVISION_3 = 5, /* variant */
  OPEN = 0x5a,
  FACTORY = 0x10000000, /* address of FICR and UICR */
};
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

static uint32_t factory_word(const struct nrf52840 *chip, uint32_t offset) {
  uint32_t word;
  memcpy(&word, chip->factory + offset, sizeof word);
  return word;
}

uint32_t nrf52840_protection(const struct machine *m) {
  return factory_word(m->chip, UICR_APPROTECT);
}

bool nrf52840_debug_open(const struct machine *m) {
  const struct nrf52840 *chip = m->chip;
  if (chip->config.variant < REVISION_3)
    return (chip->config.protection & 0xff) == 0xff;
  return (chip->config.protection & 0xff) == OPEN &&
         chip->power.debug_opened == OPEN;
}

/* Unicorn stores the value itself. A word of UICR is written once, and takes
   effect after a reset. */
static bool store_uicr(void *owner, uint32_t address) {
  struct nrf52840 *chip = owner;
  const uint32_t offset = address - FACTORY;
  if (offset != UICR_APPROTECT || !nrf_nvmc_writes(chip) ||
      factory_word(chip, offset) != UINT32_MAX)
    return false;
  flash_stall(chip->m);
  return true;
}

/* Fill in FICR. UICR is erased, but for the protection. */
static void fill_factory(struct nrf52840 *chip) {
  const struct nrf52840_config *config = &chip->config;
  const uint32_t part = 8;
  memset(chip->factory, 0xff, sizeof chip->factory);
  memcpy(chip->factory + 0x60, config->device_id, 8);
  memcpy(chip->factory + FICR_PART, &part, 4);
  memcpy(chip->factory + FICR_VARIANT, &config->variant, 4);
  memcpy(chip->factory + UICR_APPROTECT, &config->protection, 4);
  chip->m->store_factory = store_uicr;
  uc_mem_map_ptr(chip->m->uc, FACTORY, sizeof chip->factory, UC_PROT_READ,
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
