/*
 * chain_steps_m0plus.c - chains of chain_m0plus.h: their steps, and the
 * elements that the assembly does not compute.
 */
#include <stddef.h>
#include <string.h>

#include "chain_m0plus.h"
#include "../mathf.h"

#if POET_M0PLUS

#define HIDDEN_BIT (1u << 23)

void poet_chain_open(struct poet_chain *chain, uint32_t elements) {
  chain->code = poet_chain_code;
  if (elements >= 64) {
    const uint32_t *from = (const uint32_t *)(const void *)poet_chain_code;
    for (uint32_t i = 0; i < POET_CHAIN_WORDS; i++) {
      chain->copy[i] = from[i];
    }
    chain->code = (const uint8_t *)chain->copy;
  }
}

void poet_chain_clear(struct poet_chain *chain) {
  chain->count = 0;
}

struct poet_step *poet_chain_array(struct poet_chain *chain,
                                   enum poet_operation operation,
                                   const void *array) {
  struct poet_step *step = &chain->steps[chain->count];
  chain->operations[chain->count++] = (uint8_t)operation;
  *step =
      (struct poet_step){.first = (uint32_t)array,
                         .code = chain->code + poet_chain_offsets[operation]};
  return step;
}

static void set_constant(struct poet_step *step, float value) {
  const uint32_t bits = poet_bits(value);
  step->first = (bits & (HIDDEN_BIT - 1)) | HIDDEN_BIT;
  step->second = bits & ~(HIDDEN_BIT - 1);
}

struct poet_step *poet_chain_constant(struct poet_chain *chain,
                                      enum poet_operation operation,
                                      float value) {
  struct poet_step *step = poet_chain_array(chain, operation, NULL);
  set_constant(step, value);
  return step;
}

/* Append: the constant of `sum` = x. */
static void save(struct poet_chain *chain, struct poet_step *sum) {
  poet_chain_array(chain, POET_SAVE, sum);
  poet_chain_array(chain, POET_NEXT, NULL);
}

static struct poet_step *plus_sum(struct poet_chain *chain, float begin) {
  struct poet_step *sum = poet_chain_constant(chain, POET_PLUS, begin);
  save(chain, sum);
  return sum;
}

struct poet_step *poet_chain_sum(struct poet_chain *chain, const float *array,
                                 float begin) {
  poet_chain_clear(chain);
  struct poet_step *sum = poet_chain_constant(chain, POET_SET, begin);
  poet_chain_array(chain, POET_PLUS_ELEMENT, array);
  save(chain, sum);
  return sum;
}

static void distance(struct poet_chain *chain, const float *array, float mean) {
  poet_chain_clear(chain);
  poet_chain_constant(chain, POET_SET, -mean);
  poet_chain_array(chain, POET_PLUS_ELEMENT, array);
}

struct poet_step *poet_chain_squares(struct poet_chain *chain,
                                     const float *array, float mean,
                                     float begin) {
  distance(chain, array, mean);
  poet_chain_array(chain, POET_SQUARE, NULL);
  return plus_sum(chain, begin);
}

void poet_chain_xhat(struct poet_chain *chain, const float *array, float mean,
                     float rstd) {
  distance(chain, array, mean);
  poet_chain_constant(chain, POET_TIMES, rstd);
}

struct poet_step *poet_chain_products(struct poet_chain *chain,
                                      const float *array, float begin) {
  const uint32_t sum_steps = 2 * sizeof(struct poet_step);
  poet_chain_array(chain, POET_TIMES_ELEMENT, array)->second = sum_steps;
  return plus_sum(chain, begin);
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

float poet_chain_saved(const struct poet_step *step) {
  return float_of(step->first - HIDDEN_BIT + step->second);
}

/* Return true if all constants are in the range of the assembly. */
static bool fits(const struct poet_chain *chain) {
  for (uint32_t i = 0; i < chain->count; i++) {
    const uint32_t operation = chain->operations[i];
    const uint32_t field = chain->steps[i].second << 1 >> 24;
    if ((operation == POET_SET || operation == POET_KEEP ||
         operation == POET_TIMES || operation == POET_PLUS) &&
        field - 64 >= 128) {
      return false;
    }
  }
  return true;
}

/* Do the rest of the steps for one element. */
static void finish(struct poet_chain *chain,
                   const struct poet_chain_state *state) {
  const uint32_t at = state->index / 4;
  float x = float_of(state->number), kept = float_of(state->kept);
  for (const struct poet_step *step = state->at;; step++) {
    const float constant = poet_chain_saved(step);
    float *array = (float *)step->first;
    switch ((enum poet_operation)chain->operations[step - chain->steps]) {
    case POET_TAKE:
      x = array[at];
      break;
    case POET_SET:
      x = constant;
      break;
    case POET_KEEP:
      kept = x;
      x = constant;
      break;
    case POET_SAVE:
      set_constant((struct poet_step *)step->first, x);
      break;
    case POET_SQUARE:
      x *= x;
      break;
    case POET_TIMES_KEPT:
      x *= kept;
      break;
    case POET_TIMES_ELEMENT:
      x *= array[at];
      break;
    case POET_TIMES:
      x *= constant;
      break;
    case POET_PLUS_KEPT:
      x += kept;
      break;
    case POET_PLUS_ELEMENT:
      x += array[at];
      break;
    case POET_PLUS:
    case POET_PLUS_ZERO:
      x += constant;
      break;
    case POET_PUT:
      array[at] = x;
      return;
    default:
      return;
    }
  }
}

void poet_chain_run(struct poet_chain *chain, uint32_t first, uint32_t count) {
  struct poet_chain_state state = {.index = 4 * first,
                                   .end = 4 * (first + count)};
  while (state.index != state.end) {
    state.at = chain->steps;
    if (fits(chain)) {
      poet_chain_enter(&state, state.at);
    }
    if (state.index != state.end) {
      finish(chain, &state);
      state.index += 4;
    }
  }
}
#endif
