/* decode.c - cycles and properties of Thumb instructions. It keeps no state.

   Cycles of the M0+: Cortex-M0+ TRM (DDI 0484C) table 3-1, with the
   single-cycle multiplier of the SAM D21 (data sheet 10.1). Cycles of the M4:
   Cortex-M4 TRM (DDI 0439) tables 3-1 (instruction set) and 7-1 (FPU). A
   pipeline refill (P) takes 1 to 3 cycles: the model takes 2. A division takes
   2 to 12 cycles: the model takes 7. Encodings: ARMv7-M ARM (DDI 0403) chapters
   A5 and A6; ARMv6-M ARM (DDI 0419) A5. */
#include "decode.h"

#include <string.h>

#include "align.h"

enum { REFILL_M4 = 2, DIVIDE_M4 = 7, BARRIER_M4 = 4 };

static unsigned bits_set(unsigned value) {
  return (unsigned)__builtin_popcount(value);
}

static uint8_t branch_cycles(enum core core) {
  return core == CORE_M4F ? 1 + REFILL_M4 : 2;
}

static void single_access(enum core core, bool load, struct instruction *i) {
  i->flags |= INSTRUCTION_SINGLE_ACCESS;
  i->cycles = core == CORE_M4F && !load ? 1 : 2;
}

static void illegal_if(bool condition, struct instruction *i) {
  if (condition)
    i->flags |= INSTRUCTION_ILLEGAL;
}

static void narrow_misc(enum core core, uint16_t op, struct instruction *i) {
  unsigned registers = bits_set(op & 0x1ffu);
  switch ((op >> 8) & 15) {
  case 0x0: /* ADD, SUB sp */
    if (op & 0x80)
      i->stack_bytes = (uint16_t)((op & 0x7fu) * 4);
    break;
  case 0x1:
  case 0x3:
  case 0x9:
  case 0xb: /* CBZ, CBNZ */
    i->flags |= INSTRUCTION_CONDITIONAL;
    i->taken_cycles = REFILL_M4;
    illegal_if(core == CORE_M0PLUS, i);
    break;
  case 0x4:
  case 0x5: /* PUSH */
    i->cycles = (uint8_t)(1 + registers);
    i->stack_bytes = (uint16_t)(4 * registers);
    break;
  case 0x6: /* CPS; these cores have no SETEND */
    illegal_if(core == CORE_M4F ? (op & 0xffec) != 0xb660
                                : (op & 0xffef) != 0xb662,
               i);
    break;
  case 0x7:
  case 0x8:
    illegal_if(true, i);
    break;
  case 0xa: /* REV, REV16, REVSH; HLT exists only on ARMv8 */
    illegal_if((op & 0xc0) == 0x80, i);
    break;
  case 0xc: /* POP */
    i->cycles = (uint8_t)(1 + registers);
    break;
  case 0xd: /* POP with the program counter */
    i->cycles = (uint8_t)(registers + (core == CORE_M4F ? 1 + REFILL_M4 : 3));
    break;
  case 0xf:
    if (op & 0xf) { /* IT */
      illegal_if(core == CORE_M0PLUS, i);
    } else if (op == 0xbf40) {
      i->flags |= INSTRUCTION_SEV;
    } else if (op == 0xbf20 || op == 0xbf30) {
      i->cycles = 2; /* WFE, WFI */
    }
    break;
  default: /* extend, BKPT */
    break;
  }
}

static void narrow(enum core core, uint16_t op, struct instruction *i) {
  i->size_bytes = 2;
  i->cycles = 1;
  unsigned registers = bits_set(op & 0xffu);
  switch (op >> 12) {
  case 0x4:
    if ((op & 0xfc00) == 0x4000)
      break;
    if ((op & 0xf800) == 0x4800)
      single_access(core, true, i);
    else if ((op & 0xff00) == 0x4700) {
      i->cycles = branch_cycles(core);
      illegal_if(op & 7, i); /* BXNS, BLXNS: ARMv8-M */
    } else if ((op & 0xfd87) == 0x4487)
      i->cycles = branch_cycles(core); /* ADD, MOV to pc */
    break;
  case 0x5:
    single_access(core, (op & 0x0e00) >= 0x0600, i);
    break;
  case 0x6:
  case 0x7:
  case 0x8:
  case 0x9:
    single_access(core, (op & 0x0800) != 0, i);
    break;
  case 0xb:
    narrow_misc(core, op, i);
    break;
  case 0xc: /* STM, LDM */
    i->cycles = (uint8_t)(1 + registers);
    break;
  case 0xd:
    if ((op & 0x0e00) != 0x0e00) {
      i->flags |= INSTRUCTION_CONDITIONAL;
      i->taken_cycles = core == CORE_M4F ? REFILL_M4 : 1;
    }
    break;
  case 0xe:
    i->cycles = branch_cycles(core);
    break;
  default:
    break;
  }
}

static int8_t s_register(unsigned four, unsigned low) {
  return (int8_t)(four * 2 + low);
}

static void fp_arithmetic(uint16_t a, uint16_t b, struct instruction *i) {
  int8_t d = s_register(b >> 12, (a >> 6) & 1u);
  int8_t n = s_register(a & 15u, (b >> 7) & 1u);
  int8_t m = s_register(b & 15u, (b >> 5) & 1u);
  illegal_if(b & 0x100, i); /* double precision */
  i->fp_result = d;
  i->fp_sources[1] = m;
  switch (a & 0xb0) {
  case 0x00:
  case 0x10:
  case 0x90:
  case 0xa0: /* multiply and accumulate: VMLA, VFMA and variants */
    i->cycles = 3;
    i->fp_sources[0] = n;
    i->fp_sources[2] = d;
    break;
  case 0x20:
  case 0x30:
    i->fp_sources[0] = n;
    break;
  case 0x80:
    i->cycles = 14;
    i->fp_sources[0] = n;
    break;
  default:
    if ((a & 15) == 1 && (b & 0xc0) == 0xc0)
      i->cycles = 14;         /* VSQRT */
    else if ((a & 14) == 4) { /* VCMP with a register, or with zero */
      i->fp_sources[0] = d;
      i->fp_sources[1] = a & 1 ? -1 : m;
      i->fp_result = -1;
    } else if (!(b & 0x40))
      i->fp_sources[1] = -1; /* VMOV immediate */
    break;
  }
}

static void fp_instruction(uint16_t a, uint16_t b, struct instruction *i) {
  i->flags |= INSTRUCTION_FP;
  int8_t d = s_register(b >> 12, (a >> 6) & 1u);
  if ((a & 0xff00) == 0xee00) {
    if (!(b & 0x10))
      fp_arithmetic(a, b, i);
    else if ((a & 0xf0) == 0x10) /* VMOV to a core register: one cycle */
      i->fp_sources[0] = s_register(a & 15u, (b >> 7) & 1u);
  } else if ((a & 0xffe0) == 0xec40) {
    i->cycles = 2; /* two registers to or from the core */
  } else if ((a & 0xff20) == 0xed00) {
    single_access(CORE_M4F, true, i);
    if (!(a & 0x10))
      i->fp_sources[0] = d;
  } else { /* VLDM, VSTM, VPUSH, VPOP */
    i->cycles = (uint8_t)(1 + (b & 0xff));
    if ((a & 0xffbf) == 0xed2d)
      i->stack_bytes = (uint16_t)((b & 0xff) * 4);
  }
}

static void wide_memory(uint16_t a, uint16_t b, struct instruction *i) {
  unsigned exclusive = b >> 4 & 15;
  if ((a & 0xffe0) == 0xe8c0) /* legal: only LDREXB/H, STREXB/H, TBB, TBH */
    illegal_if(
        exclusive != 4 && exclusive != 5 && !((a & 0x10) && exclusive < 2), i);
  if ((a & 0xfff0) == 0xe840 || a == 0xe97f) /* TT, SG: ARMv8-M */
    illegal_if(b >> 12 == 15 || a == 0xe97f, i);
  if (!(a & 0x40)) { /* LDM, STM, PUSH, POP */
    unsigned registers = bits_set(b);
    bool to_pc = (a & 0x10) && (b & 0x8000);
    i->cycles = (uint8_t)(1 + registers + (to_pc ? REFILL_M4 : 0));
    if (a == 0xe92d)
      i->stack_bytes = (uint16_t)(4 * registers);
  } else if ((a & 0xfff0) == 0xe8d0 && (b & 0xffe0) == 0xf000) {
    i->cycles = 2 + REFILL_M4; /* TBB, TBH */
  } else if ((a & 0x120) == 0) {
    single_access(CORE_M4F, true, i); /* exclusive accesses */
  } else {
    i->cycles = 3; /* LDRD, STRD */
    if ((a & 0xffff) == 0xe96d)
      i->stack_bytes = (uint16_t)((b & 0xff) * 4);
  }
}

static void wide_branch(enum core core, uint16_t a, uint16_t b,
                        struct instruction *i) {
  if ((b & 0x5000) == 0x5000) { /* BL */
    i->cycles = core == CORE_M4F ? 1 + REFILL_M4 : 3;
  } else if ((b & 0x5000) == 0x1000) { /* B.W */
    i->cycles = 1 + REFILL_M4;
    illegal_if(core == CORE_M0PLUS, i);
  } else if ((a & 0x0380) != 0x0380) { /* Bcc.W */
    i->flags |= INSTRUCTION_CONDITIONAL;
    i->taken_cycles = REFILL_M4;
    illegal_if(core == CORE_M0PLUS, i);
  } else if ((a & 0xfff0) == 0xf3b0) { /* DSB, DMB, ISB; CLREX */
    unsigned which = b >> 4 & 15;
    if (which == 4 || which == 5)
      i->flags |= INSTRUCTION_BARRIER;
    i->cycles = core == CORE_M4F ? BARRIER_M4 : 3;
    illegal_if((which < 4 || which > 6) && !(core == CORE_M4F && which == 2),
               i);
  } else if ((a & 0xffe0) == 0xf380 || (a & 0xffe0) == 0xf3e0) {
    unsigned system = b & 0xff;           /* BASEPRI, FAULTMASK: ARMv7-M */
    i->cycles = core == CORE_M4F ? 2 : 3; /* MSR, MRS */
    illegal_if(core == CORE_M0PLUS && system >= 17 && system <= 19, i);
  } else if (core == CORE_M0PLUS) {
    i->flags |= INSTRUCTION_ILLEGAL;
  }
}

static void wide_single(uint16_t a, uint16_t b, struct instruction *i) {
  bool load = (a & 0x10) != 0;
  single_access(CORE_M4F, load, i);
  illegal_if((a & 0xff10) == 0xf900, i); /* Advanced SIMD */
  if (load && (b >> 12) == 15 && (a & 0x60) == 0x40)
    i->cycles = 2 + REFILL_M4; /* LDR to pc */
  if (!load && (a & 15) == 13 && (b & 0x0f00) == 0x0d00)
    i->stack_bytes = b & 0xff; /* STR to [sp, #-n]! */
}

static uint16_t subtracted(uint16_t a, uint16_t b) {
  unsigned immediate = (b & 0xffu) | ((b >> 4) & 0x700u) | ((a & 0x400u) << 1);
  if (immediate < 256 || (a & 0x0200))
    return (uint16_t)immediate;
  uint32_t value = 0x80u | (immediate & 0x7fu); /* rotated right */
  unsigned rotation = immediate >> 7;
  return (uint16_t)(value >> rotation | value << (32 - rotation));
}

static void wide(enum core core, uint16_t a, uint16_t b,
                 struct instruction *i) {
  i->size_bytes = 4;
  i->cycles = 1;
  if ((a & 0xf800) == 0xf000 && (b & 0x8000)) {
    wide_branch(core, a, b, i);
  } else if (core == CORE_M0PLUS) {
    i->flags |= INSTRUCTION_ILLEGAL;
  } else if ((a & 0xec00) == 0xec00) {
    bool fp = (b & 0x0e00) == 0x0a00;
    illegal_if(!fp || (a & 0x1000), i); /* no such coprocessor, or ARMv8-M */
    if (fp)
      fp_instruction(a, b, i);
  } else if ((a & 0xfe00) == 0xe800) {
    wide_memory(a, b, i);
  } else if ((a & 0xfe00) == 0xf800) {
    wide_single(a, b, i);
  } else if ((a & 0xffd0) == 0xfb90) {
    i->cycles = DIVIDE_M4;
  } else if ((a & 0xffe0) == 0xfac0) {
    illegal_if(true, i); /* CRC32: ARMv8 */
  } else if ((a & 0xfbff) == 0xf1ad || (a & 0xfbff) == 0xf2ad) {
    i->stack_bytes = subtracted(a, b); /* SUB, SUBW sp, sp, #n */
  }
}

struct instruction decode_instruction(enum core core, uint16_t first,
                                      uint16_t second) {
  struct instruction i = {.fp_result = -1, .fp_sources = {-1, -1, -1}};
  if (is_wide(first))
    wide(core, first, second, &i);
  else
    narrow(core, first, &i);
  return i;
}

static bool reads(const struct instruction *i, int8_t s) {
  for (unsigned k = 0; k < 3; k++)
    if (s >= 0 && i->fp_sources[k] == s)
      return true;
  return false;
}

struct block decode_block(enum core core, const uint8_t *code,
                          uint32_t size_bytes) {
  struct block block = {.size_bytes = (uint16_t)size_bytes};
  struct instruction before = {.fp_result = -1};
  struct alignment alignment = {0};
  unsigned cycles = 0, stack = 0;
  for (uint32_t at = 0; at + 2 <= size_bytes;) {
    uint16_t halves[2] = {0, 0};
    memcpy(halves, code + at, at + 4 <= size_bytes ? 4 : 2);
    struct instruction i = decode_instruction(core, halves[0], halves[1]);
    cycles += i.cycles;
    if (core == CORE_M4F && reads(&i, before.fp_result))
      cycles += 1; /* wait for the previous instruction's result */
    if (core == CORE_M4F &&
        (i.flags & before.flags) & INSTRUCTION_SINGLE_ACCESS && i.cycles == 2)
      cycles -= 1; /* pipelined with the access before */
    stack += i.stack_bytes;
    align_next(&alignment, halves[0], halves[1]);
    block.flags |= i.flags;
    block.taken_cycles = i.taken_cycles;
    block.instructions++;
    at += i.size_bytes;
    before = i;
  }
  if (core == CORE_M4F) {
    block.aligned = alignment.needed;
    block.aligned_after = alignment.left & 0x1fff; /* exceptions change lr */
  }
  block.cycles = (uint16_t)cycles;
  block.stack_bytes = (uint16_t)stack;
  if (!(before.flags & INSTRUCTION_CONDITIONAL))
    block.flags &= (uint8_t)~INSTRUCTION_CONDITIONAL;
  return block;
}
