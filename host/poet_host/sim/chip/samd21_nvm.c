/* samd21_nvm.c - NVMCTRL (section 22): wait states and cache of the flash.
   Programming is not modelled. State: CTRLB, which sets both. If the core
   clock needs a wait state and CTRLB sets none, the machine stops. */
#include "samd21.h"

enum {
  BASE = 0x41004000,
  CTRLB = 0x04,
  PARAM = 0x08,
  INTFLAG = 0x14,
  STATUS = 0x18,
  CACHEDIS = 1 << 18,
  CACHE_LINES = 8, /* lines of a direct-mapped cache, 64 bits each (22.6.5) */
  LINE_SHIFT = 3,
  NO_WAIT_HZ = 24000000, /* table 37-43, above 2.7 V */
};

void samd21_nvm_check(void *owner) {
  struct samd21 *chip = owner;
  uint32_t wait = chip->nvm_control_b >> 1 & 15;
  uint32_t hz = SAMD21_HZ / chip->m->ticks_per_cycle;
  if (hz > NO_WAIT_HZ && wait == 0)
    machine_stop(chip->m, RUN_FAULT,
                 "the core runs at %u Hz without a flash wait state: set "
                 "NVMCTRL.CTRLB.RWS to 1 first",
                 hz);
  cache_configure(chip->m, LINE_SHIFT,
                  chip->nvm_control_b & CACHEDIS ? 0 : CACHE_LINES, wait);
}

static const struct reg registers[] = {
    {CTRLB, 4, PLAIN, FIELD(struct samd21, nvm_control_b),
     .after = samd21_nvm_check},
    {PARAM, 4, .constant = 0x00031000}, /* pages of 64 bytes, 4096 of them */
    {INTFLAG, 1, .constant = 1},        /* READY */
    {STATUS, 2, .constant = 0},
    {0}};

void samd21_nvm_create(struct samd21 *chip) {
  machine_map(chip->m, &(struct region){"NVMCTRL", BASE, 0x400, chip,
                                        .registers = registers});
  samd21_nvm_check(chip);
}
