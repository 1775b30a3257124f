/* samd21_nvm.c - NVMCTRL (section 22): wait states and cache of the flash.
   Programming is not modelled. State: CTRLB, which sets both. A core clock that
   needs a wait state, without one, stops the machine. */
#include "samd21.h"

enum {
  BASE = 0x41004000,
  CTRLB = 0x04,
  PARAM = 0x08,
  INTFLAG = 0x14,
  STATUS = 0x18,
  CACHEDIS = 1 << 18,
  CACHE_LINES = 8, /* direct-mapped, 8 lines of 64 bits (22.6.5) */
  LINE_SHIFT = 3,
  NO_WAIT_HZ = 24000000, /* table 37-43, above 2.7 V */
};

void samd21_nvm_check(struct samd21 *chip) {
  uint32_t wait = chip->nvm.control_b >> 1 & 15;
  uint32_t hz = SAMD21_HZ / chip->m->ticks_per_cycle;
  if (hz > NO_WAIT_HZ && wait == 0)
    machine_stop(chip->m, RUN_FAULT,
                 "the core runs at %u Hz without a flash wait state: set "
                 "NVMCTRL.CTRLB.RWS to 1 first",
                 hz);
  cache_configure(chip->m, LINE_SHIFT,
                  chip->nvm.control_b & CACHEDIS ? 0 : CACHE_LINES, wait);
}

static bool nvm_read(void *owner, uint32_t offset, unsigned size,
                     uint32_t *value) {
  struct samd21_nvm *nvm = owner;
  switch (offset) {
  case CTRLB:
    *value = nvm->control_b;
    return size == 4;
  case PARAM:
    *value = 0x00031000; /* pages of 64 bytes, 4096 of them */
    return size == 4;
  case INTFLAG:
    *value = 1; /* READY */
    return size == 1;
  case STATUS:
    *value = 0;
    return size == 2;
  default:
    return false;
  }
}

static bool nvm_write(void *owner, uint32_t offset, unsigned size,
                      uint32_t value) {
  struct samd21_nvm *nvm = owner;
  if (offset != CTRLB || size != 4)
    return false;
  nvm->control_b = value;
  samd21_nvm_check(nvm->chip);
  return true;
}

void samd21_nvm_create(struct samd21 *chip) {
  chip->nvm = (struct samd21_nvm){chip, 0};
  machine_map(chip->m, &(struct region){"NVMCTRL", BASE, 0x400, &chip->nvm,
                                        nvm_read, nvm_write});
  samd21_nvm_check(chip);
}
