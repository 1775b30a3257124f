/* align.c - finds the registers that a block of Thumb code uses as a base for
   accesses that must be aligned (align.h). Encodings: ARMv7-M ARM, A5. It keeps
   no state; core.c keeps the result for the running block. */
#include "align.h"

#include "machine.h"

enum { SP = 13, PC = 15, NO_REGISTER = 16 };

bool is_wide(uint16_t first) {
  return (first >> 11) >= 0x1d;
}

/* Return the base register of LDM, STM, LDRD, STRD, LDREX, STREX, VLDR,
   VSTR, VLDM or VSTM. The stack pointer needs no check: it is always a
   multiple of 4. */
static unsigned base_of(uint16_t a, uint16_t b) {
  unsigned base = a & 15u;
  if (!is_wide(a))
    return (a & 0xf000) == 0xc000 ? a >> 8 & 7u : NO_REGISTER;
  bool several = (a & 0xfe40) == 0xe800;
  bool pair = (a & 0xfe40) == 0xe840 && (a & 0xffe0) != 0xe8c0;
  bool vector = (a & 0xfe00) == 0xec00 && (b & 0x0e00) == 0x0a00 &&
                (a & 0xffe0) != 0xec40;
  return (several || pair || vector) && base != SP && base != PC ? base
                                                                 : NO_REGISTER;
}

static uint16_t one(unsigned number) {
  return (uint16_t)(1u << number);
}

/* Return a bit for each register whose remainder modulo 4 may change by this
   16-bit instruction. */
static uint16_t narrow_changes(uint16_t a) {
  bool whole_words = !(a & 3);
  switch (a >> 12) {
  case 0x2:
    return one(a >> 8 & 7u); /* MOVS, CMP */
  case 0x3:
    return whole_words ? 0 : one(a >> 8 & 7u); /* ADDS, SUBS #n */
  case 0x4:
    if ((a & 0xf800) == 0x4800)
      return one(a >> 8 & 7u);
    return (a & 0xfc00) == 0x4400 ? one((a & 7u) | (a >> 4 & 8u)) : one(a & 7u);
  case 0x9:
  case 0xa:
    return one(a >> 8 & 7u);
  case 0xb:
    return (a & 0x0e00) == 0x0c00 ? a & 0xffu : one(a & 7u);
  case 0xc:
    return a & 0x0800 ? a & 0xffu : 0;
  case 0xd:
  case 0xe:
    return 0;
  default:
    return one(a & 7u);
  }
}

/* The same for a 32-bit instruction. */
static uint16_t wide_changes(uint16_t a, uint16_t b) {
  uint16_t base = one(a & 15u), high = one(b >> 12), low = one(b >> 8 & 15u);
  if ((a & 0xfe40) == 0xe800) /* LDM, STM: they add a multiple of 4 */
    return a & 0x10 ? b : 0;
  if ((a & 0xfe00) == 0xec00) /* VMOV to two core registers */
    return (a & 0xfff0) == 0xec50 ? high | base : 0;
  if ((a & 0xff00) == 0xee00) /* VMOV to one core register */
    return a & b & 0x10 ? high : 0;
  if ((a & 0xfe00) == 0xf800) /* one load or store */
    return high | (!(a & 0x80) && (b & 0x900) == 0x900 ? base : 0);
  return high | low;
}

void align_next(struct alignment *state, uint16_t a, uint16_t b) {
  unsigned base = base_of(a, b);
  uint16_t changes = is_wide(a) ? wide_changes(a, b) : narrow_changes(a);
  if (state->conditional)
    state->conditional--;
  else if (base != NO_REGISTER)
    *(state->changed & one(base) ? &state->left : &state->needed) |= one(base);
  if ((a & 0xff00) == 0xbf00 && (a & 15))
    state->conditional = 4u - (unsigned)__builtin_ctz(a & 15u);
  state->changed |= changes;
  state->left &= (uint16_t)~changes;
}

static uint32_t register_of(struct machine *m, unsigned number) {
  return core_read(m,
                   number == 14 ? UC_ARM_REG_LR : UC_ARM_REG_R0 + (int)number);
}

bool align_holds(struct machine *m, uint16_t needed) {
  for (unsigned number = 0; needed; number++, needed >>= 1)
    if ((needed & 1) && (register_of(m, number) & 3))
      return false;
  return true;
}
