/* nrf_nvmc.c - NVMC (chapter of that name): the instruction cache, and erasing
   and programming the flash. State: struct nrf_nvmc. A store of the program
   into flash programs a word while CONFIG enables writing; at other times the
   core faults, as it does for a store of another size. Times and limits are
   those of the chapter's electrical specification. */
#include "nrf52840.h"

enum {
  READY = 0x400,
  READYNEXT = 0x408,
  CONFIG = 0x504,
  ERASEPAGE = 0x508,
  ERASEPAGEPARTIAL = 0x518,
  ERASEPAGEPARTIALCFG = 0x51c,
  ICACHECNF = 0x540,
  WRITE_ENABLED = 1, /* values of CONFIG */
  ERASE_ENABLED = 2,
  PAGE_BYTES = 4096,
  ERASE_US = 85000,   /* tERASEPAGE */
  PART_RESET_MS = 10, /* of ERASEPAGEPARTIALCFG.DURATION, which has 7 bits */
  CACHE_LINES = 128,  /* 2 KiB in lines of 16 bytes */
  CACHE_LINE_SHIFT = 4,
  CACHE_MISS_CYCLES = 3, /* W_FLASHCACHE */
  NO_CACHE_CYCLES = 2,   /* W_FLASH, for every 8 bytes */
};

static void configure_cache(void *owner) {
  const struct nrf_nvmc *n = owner;
  struct machine *m = n->p.chip->m;
  if (n->cache_config & 1)
    cache_configure(m, CACHE_LINE_SHIFT, CACHE_LINES, CACHE_MISS_CYCLES);
  else
    cache_configure(m, 3, 0, NO_CACHE_CYCLES);
}

static uint32_t ready(void *owner) {
  const struct nrf_nvmc *n = owner;
  return !flash_busy(n->p.chip->m);
}

static void check_comparator(struct nrf_nvmc *n) {
  if (n->p.chip->power.power_fail & 1)
    nrf_stop(&n->p, "the flash changes while POFCON is enabled, which hangs "
                    "the core if the supply is low (anomaly 242)");
}

static bool may_erase(struct nrf_nvmc *n, uint32_t page) {
  check_comparator(n);
  if (n->config != ERASE_ENABLED)
    nrf_stop(&n->p, "ERASEPAGE is written while CONFIG does not enable erase");
  else if (page % PAGE_BYTES)
    nrf_stop(&n->p, "ERASEPAGE is not the address of a page");
  else if (n->part_us && page != n->part_page)
    nrf_stop(&n->p, "another page is erased only in part");
  else
    return true;
  return false;
}

static bool erase_page(void *owner, uint32_t value) {
  struct nrf_nvmc *n = owner;
  if (may_erase(n, value)) {
    n->part_us = 0;
    flash_erase(n->p.chip->m, value);
  }
  return true;
}

/* The page is erased when the parts together take tERASEPAGE. */
static bool erase_part(void *owner, uint32_t value) {
  struct nrf_nvmc *n = owner;
  const uint32_t us = n->part_config * 1000;
  if (may_erase(n, value)) {
    n->part_page = value;
    n->part_us += us;
    const bool is_last = n->part_us >= ERASE_US;
    flash_erase_part(n->p.chip->m, value, us, is_last);
    if (is_last)
      n->part_us = 0;
  }
  return true;
}

bool nrf_nvmc_writes(const struct nrf52840 *chip) {
  return chip->nvmc.config == WRITE_ENABLED;
}

static bool store(void *owner, uint32_t address, unsigned size,
                  uint32_t value) {
  struct nrf_nvmc *n = owner;
  if (!nrf_nvmc_writes(n->p.chip) || size != 4)
    return false;
  check_comparator(n);
  flash_program(n->p.chip->m, address, &value);
  return true;
}

static const struct reg registers[] = {
    {READY, 4, .get = ready},
    {READYNEXT, 4, .get = ready},
    {CONFIG, 4, PLAIN, FIELD(struct nrf_nvmc, config), .most = 2},
    {ERASEPAGE, 4, WRITE_ONLY, .set = erase_page},
    {ERASEPAGEPARTIAL, 4, WRITE_ONLY, .set = erase_part},
    {ERASEPAGEPARTIALCFG, 4, PLAIN, FIELD(struct nrf_nvmc, part_config),
     .most = 127},
    {ICACHECNF, 4, PLAIN, FIELD(struct nrf_nvmc, cache_config), .most = 1,
     .after = configure_cache},
    {0}};

void nrf_nvmc_create(struct nrf52840 *chip) {
  struct nrf_nvmc *n = &chip->nvmc;
  n->p = (struct nrf_peripheral){
      .name = "NVMC", .base = 0x4001e000, .irq = 30, .registers = registers};
  nrf_add(chip, &n->p);
  n->part_config = PART_RESET_MS;
  chip->m->store = store;
  chip->m->store_owner = n;
  flash_create(chip->m, &(struct flash_array){
                            .erase_bytes = PAGE_BYTES,
                            .program_bytes = 4,
                            .counted_bytes = 4,
                            .most_writes = 2, /* nWRITE */
                            .erase_us = ERASE_US,
                            .write_us = 41, /* tWRITE */
                        });
  configure_cache(n);
}
