/* nrf_system.c - NVMC and GPIO (chapters of these names): the instruction
   cache, and the pins, of which only the card's select has an effect.
   Programming the flash is not modelled. State: struct nrf_nvmc and struct
   nrf_gpio. */
#include "nrf52840.h"

enum {
  READY = 0x400,
  READYNEXT = 0x408,
  CONFIG = 0x504,
  ICACHECNF = 0x540,
  CACHE_LINES = 128, /* 2 KiB in lines of 16 bytes */
  CACHE_LINE_SHIFT = 4,
  CACHE_MISS_CYCLES = 3, /* W_FLASHCACHE */
  NO_CACHE_CYCLES = 2,   /* W_FLASH, for every 8 bytes */
  GPIO_BASE = 0x50000000,
  PORT_STRIDE = 0x300,
  OUT = 0x504,
  OUTSET = 0x508,
  OUTCLR = 0x50c,
  IN = 0x510,
  DIR = 0x514,
  DIRSET = 0x518,
  DIRCLR = 0x51c,
  PIN_CNF = 0x700,
};

/* -- NVMC -- */

static bool no_task(struct nrf_peripheral *p, uint32_t offset) {
  (void)p, (void)offset;
  return false;
}

static void configure_cache(struct nrf_nvmc *n) {
  struct machine *m = n->p.chip->m;
  if (n->cache_config & 1)
    cache_configure(m, CACHE_LINE_SHIFT, CACHE_LINES, CACHE_MISS_CYCLES);
  else
    cache_configure(m, 3, 0, NO_CACHE_CYCLES);
}

static bool nvmc_read(struct nrf_peripheral *p, uint32_t offset,
                      uint32_t *value) {
  const struct nrf_nvmc *n = (struct nrf_nvmc *)p;
  switch (offset) {
  case READY:
  case READYNEXT:
    *value = 1;
    return true;
  case CONFIG:
    *value = 0;
    return true;
  case ICACHECNF:
    *value = n->cache_config;
    return true;
  default:
    return false;
  }
}

static bool nvmc_write(struct nrf_peripheral *p, uint32_t offset,
                       uint32_t value) {
  struct nrf_nvmc *n = (struct nrf_nvmc *)p;
  if (offset == ICACHECNF && !(value & ~1u)) {
    n->cache_config = value;
    configure_cache(n);
    return true;
  }
  return offset == CONFIG && value == 0;
}

void nrf_nvmc_create(struct nrf52840 *chip) {
  struct nrf_nvmc *n = &chip->nvmc;
  n->p = (struct nrf_peripheral){.name = "NVMC",
                                 .base = 0x4001e000,
                                 .irq = 30,
                                 .task = no_task,
                                 .read = nvmc_read,
                                 .write = nvmc_write};
  nrf_add(chip, &n->p);
  configure_cache(n);
}

/* -- GPIO -- */

static void drive(struct nrf_gpio *g) {
  struct nrf52840 *chip = g->chip;
  unsigned pin = chip->config.card_select_pin;
  uint32_t bit = 1u << pin % 32;
  bool low = (g->dir[pin / 32] & bit) && !(g->out[pin / 32] & bit);
  if (chip->card && low != chip->card->selected)
    sdcard_select(chip->card, low, machine_nanoseconds(chip->m));
}

static bool gpio_read(void *owner, uint32_t offset, unsigned size,
                      uint32_t *value) {
  const struct nrf_gpio *g = owner;
  unsigned port = offset >= PIN_CNF + 128;
  uint32_t at = offset - port * PORT_STRIDE;
  if (size != 4)
    return false;
  if (at >= PIN_CNF && at < PIN_CNF + 128) {
    *value = g->config[port][(at - PIN_CNF) / 4];
    return true;
  }
  switch (at) {
  case OUT:
  case OUTSET:
  case OUTCLR:
    *value = g->out[port];
    return true;
  case IN:
    *value = g->out[port] & g->dir[port];
    return true;
  case DIR:
  case DIRSET:
  case DIRCLR:
    *value = g->dir[port];
    return true;
  default:
    return false;
  }
}

static bool gpio_write(void *owner, uint32_t offset, unsigned size,
                       uint32_t value) {
  struct nrf_gpio *g = owner;
  unsigned port = offset >= PIN_CNF + 128;
  uint32_t at = offset - port * PORT_STRIDE;
  if (size != 4)
    return false;
  if (at >= PIN_CNF && at < PIN_CNF + 128) {
    unsigned pin = (at - PIN_CNF) / 4;
    g->config[port][pin] = value;
    g->dir[port] = (g->dir[port] & ~(1u << pin)) | (value & 1u) << pin;
    drive(g);
    return true;
  }
  uint32_t *r = at >= DIR ? &g->dir[port] : &g->out[port];
  switch (at) {
  case OUT:
  case DIR:
    *r = value;
    break;
  case OUTSET:
  case DIRSET:
    *r |= value;
    break;
  case OUTCLR:
  case DIRCLR:
    *r &= ~value;
    break;
  default:
    return false;
  }
  drive(g);
  return true;
}

void nrf_gpio_create(struct nrf52840 *chip) {
  chip->gpio.chip = chip;
  machine_map(chip->m,
              &(struct region){"GPIO", GPIO_BASE, 0x1000, &chip->gpio,
                               .read = gpio_read, .write = gpio_write});
}
