/* samd21_nvm.c - NVMCTRL (section 22): wait states and cache of the flash, its
   page buffer, and the commands that erase a row and write a page.

   State: struct samd21_nvm. If the core clock needs a wait state and CTRLB sets
   none, the machine stops. Stores into flash fill the page buffer, which the
   program must clear (command PBC) before it fills it for another page.
   Times and limits: tables 37-40 to 37-43. */
#include <string.h>

#include "samd21.h"

enum {
  BASE = 0x41004000,
  CTRLA = 0x00,
  CTRLB = 0x04,
  PARAM = 0x08,
  INTFLAG = 0x14,
  STATUS = 0x18,
  ADDR = 0x1c,
  LOCK = 0x20,
  KEY = 0xa5,
  ERASE_ROW = 0x02,
  WRITE_PAGE = 0x04,
  LOCK_REGION = 0x40,
  CLEAR_BUFFER = 0x44,
  INVALIDATE_CACHE = 0x46,
  MANW = 1 << 7,
  CACHEDIS = 1 << 18,
  READY = 1,
  ERROR = 2,
  LOADED = 2, /* bits of STATUS */
  PROGRAMMING_ERROR = 4,
  LOCK_ERROR = 8,
  STICKY = 4 | 8 | 16,
  LOCK_REGIONS = 16, /* that can be locked: 22.6.4.6 */
  CACHE_LINES = 8,   /* lines of a direct-mapped cache, 64 bits each (22.6.5) */
  LINE_SHIFT = 3,
  NO_WAIT_HZ = 24000000, /* table 37-43, above 2.7 V */
  ROW_BYTES = 256,
};

void samd21_nvm_check(void *owner) {
  struct samd21 *chip = owner;
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

static uint16_t region(const struct samd21 *chip, uint32_t address) {
  return (
      uint16_t)(1u << (address / (chip->m->flash_bytes / LOCK_REGIONS) & 15));
}

static bool is_locked(const void *owner, uint32_t address) {
  const struct samd21 *chip = owner;
  return !(chip->nvm.unlocked & region(chip, address));
}

/* Refuse to change a region that is locked. */
static bool refuses(struct samd21 *chip) {
  struct samd21_nvm *nvm = &chip->nvm;
  if (!is_locked(chip, nvm->address * 2))
    return false;
  nvm->status |= LOCK_ERROR;
  nvm->flags |= ERROR;
  return true;
}

static void write_page(struct samd21 *chip) {
  struct samd21_nvm *nvm = &chip->nvm;
  if (refuses(chip))
    return;
  flash_program(chip->m, nvm->address * 2 & ~(SAMD21_PAGE_BYTES - 1u),
                nvm->buffer);
  nvm->status &= (uint16_t)~LOADED;
  nvm->spent = true;
}

static bool fail(struct samd21_nvm *nvm) {
  nvm->status |= PROGRAMMING_ERROR;
  nvm->flags |= ERROR;
  return true;
}

/* A wrong key, or a command before the last one has ended, is an error. */
static bool command(void *owner, uint32_t value) {
  struct samd21 *chip = owner;
  struct samd21_nvm *nvm = &chip->nvm;
  if (value >> 8 != KEY || flash_busy(chip->m))
    return fail(nvm);
  switch (value & 0x7f) {
  case ERASE_ROW:
    if (!refuses(chip))
      flash_erase(chip->m, nvm->address * 2);
    return true;
  case LOCK_REGION:
    nvm->unlocked &= (uint16_t)~region(chip, nvm->address * 2);
    return true;
  case WRITE_PAGE:
    write_page(chip);
    return true;
  case CLEAR_BUFFER:
    memset(nvm->buffer, 0xff, sizeof nvm->buffer);
    nvm->status &= (uint16_t)~LOADED;
    nvm->spent = false;
    return true;
  case INVALIDATE_CACHE:
    samd21_nvm_check(chip); /* configures the cache: it is empty then */
    return true;
  default:
    return false;
  }
}

/* A store of the program into flash fills the page buffer and sets ADDR. Below
   the program's end it is a mistake of the program, as with a null pointer: the
   machine stops, unless it takes faults as the chip does. Without MANW, such a
   mistake changes the flash. */
static bool store(void *owner, uint32_t address, unsigned size,
                  uint32_t value) {
  struct samd21 *chip = owner;
  struct samd21_nvm *nvm = &chip->nvm;
  if (size == 1 ||
      (address < chip->m->array.program_end && !chip->m->take_faults))
    return false;
  const uint32_t page = address / SAMD21_PAGE_BYTES;
  if (nvm->spent || ((nvm->status & LOADED) && page != nvm->page)) {
    machine_stop(chip->m, RUN_FAULT,
                 "NVMCTRL: the page buffer holds other data: clear it first "
                 "(command PBC)");
    return true;
  }
  memcpy(nvm->buffer + address % SAMD21_PAGE_BYTES, &value, size);
  nvm->page = page;
  nvm->address = address / 2;
  nvm->status |= LOADED;
  if (!(nvm->control_b & MANW) &&
      address % SAMD21_PAGE_BYTES + size == SAMD21_PAGE_BYTES)
    write_page(chip);
  return true;
}

static uint32_t flags(void *owner) {
  const struct samd21 *chip = owner;
  return chip->nvm.flags | (flash_busy(chip->m) ? 0u : READY);
}

#define OF(member) FIELD(struct samd21, nvm.member)
static const struct reg registers[] = {
    {CTRLA, 2, BY_FUNCTION, OF(command), .set = command},
    {CTRLB, 4, PLAIN, OF(control_b), .after = samd21_nvm_check},
    {PARAM, 4, .constant = 0x00031000}, /* pages of 64 bytes, 4096 of them */
    {INTFLAG, 1, CLEAR_ONES, OF(flags), .mask = ERROR, .get = flags},
    {STATUS, 2, CLEAR_ONES, OF(status), .mask = STICKY},
    {ADDR, 4, PLAIN, OF(address), .mask = 0x3fffff},
    {LOCK, 2, READ_ONLY, OF(unlocked)},
    {0}};

void samd21_nvm_create(struct samd21 *chip) {
  memset(chip->nvm.buffer, 0xff, sizeof chip->nvm.buffer);
  chip->nvm.unlocked = 0xffff;
  machine_map(chip->m, &(struct region){"NVMCTRL", BASE, 0x400, chip,
                                        .registers = registers});
  chip->m->store = store;
  chip->m->locked = is_locked;
  chip->m->store_owner = chip;
  flash_create(chip->m, &(struct flash_array){
                            .erase_bytes = ROW_BYTES,
                            .program_bytes = SAMD21_PAGE_BYTES,
                            .counted_bytes = ROW_BYTES,
                            .most_writes = 8,
                            .erase_us = 6000,
                            .write_us = 2500,
                        });
  samd21_nvm_check(chip);
}
