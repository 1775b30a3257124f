/* locate.c - finds the instruction of the current block that made an access.
   The core reports only the block, but the values of its registers are current.
   So locate.c searches for the instruction whose registers yield the address.
   locate.c keeps no state. */
#include "machine.h"

#include <string.h>

static uint32_t core_register(struct machine *m, unsigned number) {
  return core_read(m, number == 13   ? UC_ARM_REG_SP
                      : number == 14 ? UC_ARM_REG_LR
                                     : UC_ARM_REG_R0 + (int)number);
}

/* Return the address that a 16-bit single load or store accesses (ARMv6-M
   A5.2.4). */
static bool narrow_address(struct machine *m, uint16_t a, uint32_t *address) {
  static const uint8_t scale[5] = {4, 4, 1, 1, 2}; /* of 0x60, 68, 70, 78, 8x */
  uint32_t base = core_register(m, a >> 3 & 7);
  unsigned kind = (a >> 11) - 0x0c;
  if (a >> 12 == 5) {
    *address = base + core_register(m, a >> 6 & 7);
    return true;
  }
  if (a >> 11 < 0x0c || a >> 11 > 0x11)
    return false;
  *address = base + (a >> 6 & 31u) * scale[kind < 4 ? kind : 4];
  return true;
}

/* Return the address that a 32-bit single load or store accesses (ARMv7-M
   A5.3.7 to A5.3.10). */
static bool wide_address(struct machine *m, uint16_t a, uint16_t b,
                         uint32_t *address) {
  uint32_t base = core_register(m, a & 15u);
  if ((a & 0xfe00) != 0xf800 || (a & 15) == 15)
    return false;
  if (a & 0x80)
    *address = base + (b & 0xfffu);
  else if (!(b & 0x800))
    *address = base + (core_register(m, b & 15u) << (b >> 4 & 3));
  else if (b & 0x400)
    *address = b & 0x200 ? base + (b & 0xffu) : base - (b & 0xffu);
  else
    *address = base;
  return true;
}

uint32_t locate_access(struct machine *m, uint32_t address) {
  uint32_t at = m->block_address;
  const struct block *block = at < m->flash_bytes ? &m->flash_blocks[at / 2]
                              : at - m->ram_base < m->ram_bytes ? m->ram_block
                                                                : NULL;
  if (!block)
    return at;
  for (uint32_t end = at + block->size_bytes; at < end;) {
    uint16_t halves[2] = {0, 0};
    uint32_t found = 0;
    uc_mem_read(m->uc, at, halves, sizeof halves);
    struct instruction i = decode_instruction(m->core, halves[0], halves[1]);
    bool single = i.size_bytes == 2
                      ? narrow_address(m, halves[0], &found)
                      : wide_address(m, halves[0], halves[1], &found);
    if (single && found == address)
      return at;
    at += i.size_bytes;
  }
  return m->block_address;
}
