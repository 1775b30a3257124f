/* chain_m0plus.h - a chain of operations for each element of some arrays, on a
 * core without floating point. Each operation is rounded as by the compiler's
 * operators, but the number stays unpacked from one to the next. */
#ifndef POET_CHAIN_M0PLUS_H
#define POET_CHAIN_M0PLUS_H

#include "../tile.h"

#if POET_M0PLUS
/* What a step does with the number x, for the element i of arrays. A chain ends
 * with PUT or NEXT. */
enum poet_operation {
  POET_TAKE,          /* x = array[i] */
  POET_SET,           /* x = constant */
  POET_KEEP,          /* kept = x, then x = constant */
  POET_SAVE,          /* the constant of another step = x */
  POET_PUT,           /* array[i] = x; the next element */
  POET_NEXT,          /* the next element */
  POET_SQUARE,        /* x = x * x */
  POET_TIMES_KEPT,    /* x = x * kept */
  POET_TIMES_ELEMENT, /* x = x * array[i] */
  POET_TIMES,         /* x = x * constant */
  POET_PLUS_KEPT,     /* x = x + kept */
  POET_PLUS_ELEMENT,  /* x = x + array[i] */
  POET_PLUS,          /* x = x + constant */
  POET_PLUS_ZERO      /* x = x + constant, which is 0 or -0 */
};

/* An array in the first word; or a constant: mantissa with bit 23 set, then
 * sign and exponent. */
struct poet_step {
  uint32_t first, second;
  const uint8_t *code;
};

/* Of poet_chain_enter. */
struct poet_chain_state {
  uint32_t index, end;        /* 4 * index of the element, and after the last */
  uint32_t number, kept;      /* their bits */
  const struct poet_step *at; /* the step to continue with */
};

/* Fewer elements in one run take less time without a chain. */
enum { POET_CHAIN_STEPS = 11, POET_CHAIN_WORDS = 107, POET_CHAIN_LEAST = 12 };

struct poet_chain {
  const uint8_t *code; /* poet_chain_code, or `copy` */
  uint8_t count, operations[POET_CHAIN_STEPS];
  struct poet_step steps[POET_CHAIN_STEPS];
  uint32_t copy[POET_CHAIN_WORDS]; /* of the code: RAM has no wait states */
};

/* Prepare for chains over about `elements` elements in all. */
void poet_chain_open(struct poet_chain *chain, uint32_t elements);

/* Remove all steps. */
void poet_chain_clear(struct poet_chain *chain);

/* Append a step with a constant. Return it. */
struct poet_step *poet_chain_constant(struct poet_chain *chain,
                                      enum poet_operation operation,
                                      float value);

/* Append a step with an array, or with neither. Return it. `array` of POET_SAVE
 * is the other step. If the element of POET_TIMES_ELEMENT is 0 and x is finite,
 * the next step->second / 12 steps are left out. */
struct poet_step *poet_chain_array(struct poet_chain *chain,
                                   enum poet_operation operation,
                                   const void *array);

/* A new chain that adds all elements to `begin`. poet_chain_saved of the step
 * that it returns is the sum. */
struct poet_step *poet_chain_sum(struct poet_chain *chain, const float *array,
                                 float begin);

/* The same for `begin` and the squares of array[i] - mean. */
struct poet_step *poet_chain_squares(struct poet_chain *chain,
                                     const float *array, float mean,
                                     float begin);

/* A new chain: x = (array[i] - mean) * rstd. */
void poet_chain_xhat(struct poet_chain *chain, const float *array, float mean,
                     float rstd);

/* Append the sum of `begin` and all x * array[i], and the end of the chain. */
struct poet_step *poet_chain_products(struct poet_chain *chain,
                                      const float *array, float begin);

/* Return the constant of a step. */
float poet_chain_saved(const struct poet_step *step);

/* Run the chain for elements `first` to `first + count - 1`. */
void poet_chain_run(struct poet_chain *chain, uint32_t first, uint32_t count);

/* Run the steps from `first` on for all elements, or until an operation leaves
 * the range of chain_m0plus.c: then state->index is not state->end. */
void poet_chain_enter(struct poet_chain_state *state,
                      const struct poet_step *first);

extern const uint8_t poet_chain_code[], poet_chain_code_end[];
extern const uint16_t poet_chain_offsets[];
#endif

#endif
