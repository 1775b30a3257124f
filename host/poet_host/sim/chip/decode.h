/* decode.h - Thumb instructions: length, cycles, and properties that the
   simulator must check. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum core { CORE_M0PLUS, CORE_M4F };

enum instruction_flag {
  INSTRUCTION_ILLEGAL = 1,     /* this core lacks the instruction */
  INSTRUCTION_FP = 2,          /* needs the floating-point unit */
  INSTRUCTION_CONDITIONAL = 4, /* a branch that may fall through */
  INSTRUCTION_SEV = 8,
  INSTRUCTION_SINGLE_ACCESS = 16, /* one load or store: pipelines on the M4 */
  INSTRUCTION_BARRIER = 32,       /* DMB or DSB: earlier stores come first */
};

struct instruction {
  uint8_t size_bytes;
  uint8_t cycles;       /* for a branch: if it is not taken */
  uint8_t taken_cycles; /* added when a conditional branch is taken */
  uint8_t flags;        /* enum instruction_flag */
  uint16_t stack_bytes; /* bytes by which it lowers the stack pointer */
  /* S register that an FP arithmetic instruction writes, or -1 */
  int8_t fp_result;
  int8_t fp_sources[3]; /* S registers that the instruction reads; -1: none */
};

/* Decode the instruction with these halfwords; `second` is ignored for a 16-bit
   instruction. */
struct instruction decode_instruction(enum core core, uint16_t first,
                                      uint16_t second);

/* A basic block: sums over its instructions. */
struct block {
  uint16_t size_bytes; /* 0: not decoded yet */
  uint16_t instructions;
  uint16_t cycles;
  uint16_t stack_bytes;
  /* bit n: register n must be a multiple of 4 before the block */
  uint16_t aligned;
  uint16_t aligned_after; /* the same, after the block */
  uint8_t taken_cycles;
  uint8_t flags; /* union of enum instruction_flag */
};

struct block decode_block(enum core core, const uint8_t *code,
                          uint32_t size_bytes);
