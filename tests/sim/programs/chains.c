/* Chains of float operations (chain_m0plus.h) on operands from a generator.
   Prints a hash of the results' bits for each batch. The same program, compiled
   for the host, is the oracle: it computes each operation alone.

   BATCHES: number of batches. SEED: start of the generator. */
#include "m0plus/chain_m0plus.h"
#include "numbers.h"

#if !POET_M0PLUS
enum poet_operation {
  POET_TAKE,
  POET_SET,
  POET_KEEP,
  POET_SAVE,
  POET_PUT,
  POET_NEXT,
  POET_SQUARE,
  POET_TIMES_KEPT,
  POET_TIMES_ELEMENT,
  POET_TIMES,
  POET_PLUS_KEPT,
  POET_PLUS_ELEMENT,
  POET_PLUS,
  POET_PLUS_ZERO
};
#endif

enum { ELEMENTS = 24, CHAINS = 16, MOST = 10, ARRAYS = 3 };

/* An operation with its constant, its array, or the step of its constant. */
struct operation {
  enum poet_operation kind;
  float value;
  uint32_t other;
};

static float arrays[ARRAYS][ELEMENTS], results[ELEMENTS];
static struct operation steps[MOST];
static uint32_t count;
static uint32_t kinds[2];

/* Of any kind, or at the borders of the range of the assembly. */
static float operand(uint32_t kind) {
  static const uint8_t borders[] = {38, 64, 126, 167, 191};
  if (kind < KINDS)
    return number(kind);
  const uint32_t mantissa = draw(0) & 0x7fffff, some = draw(0);
  if (kind & 1) {
    const uint32_t at = borders[some % sizeof borders];
    return from_bits(normal(at, at + 1, some & 64 ? 0 : 0x7fffff));
  }
  return from_bits(some & 16 ? normal(60, 69, mantissa)
                             : normal(186, 196, mantissa));
}

static void fill(void) {
  const uint32_t near = draw(3), at_borders = draw(4);
  for (uint32_t i = 0; i < 2; i++) {
    const uint32_t kind = draw(2 * KINDS);
    kinds[i] = at_borders == 0 ? KINDS : kind > KINDS + 1 ? draw(3) : kind;
  }
  for (uint32_t i = 0; i < ELEMENTS; i++) {
    for (uint32_t j = 0; j < ARRAYS; j++)
      arrays[j][i] = operand(kinds[j & 1]);
    const uint32_t minus = to_bits(arrays[0][i]) ^ 0x80000000u;
    if (near == 0)
      arrays[1][i] = from_bits(minus + draw(7) - 3);
  }
}

static void append(enum poet_operation kind, float value, uint32_t other) {
  steps[count++] = (struct operation){kind, value, other};
}

static void draw_chain(void) {
  static const enum poet_operation some[] = {
      POET_KEEP,         POET_SQUARE,     POET_TIMES_ELEMENT,
      POET_TIMES,        POET_PLUS,       POET_PLUS_ELEMENT,
      POET_PLUS_ELEMENT, POET_TIMES_KEPT, POET_PLUS_KEPT};
  uint32_t kept = 0;
  count = 0;
  const uint32_t start = draw(3);
  if (start)
    append(POET_SET, operand(kinds[draw(2)]), 0);
  if (start < 2)
    append(start ? POET_PLUS_ELEMENT : POET_TAKE, 0, 0);
  if (kinds[0] == KINDS && draw(2)) {
    append(POET_TIMES, operand(kinds[0]), 0);
    append(POET_PLUS_ELEMENT, 0, draw(ARRAYS));
  }
  for (uint32_t left = draw(MOST - 3 - count); left; left--) {
    const enum poet_operation kind = some[draw(kept ? 9 : 7)];
    const float value = draw(8) ? operand(kinds[draw(2)]) : 0.0f;
    append(kind, value,
           kind == POET_TIMES_ELEMENT || kind == POET_PLUS_ELEMENT
               ? draw(ARRAYS)
               : 0);
    kept |= kind == POET_KEEP;
  }
  const uint32_t end = draw(3);
  if (end == 0) {
    append(POET_PUT, 0, 0);
    return;
  }
  if (end == 1)
    append(POET_TIMES_ELEMENT, 1, draw(ARRAYS)); /* may leave out two steps */
  else if (draw(2))
    append(POET_PLUS_ZERO, from_bits(draw(2) << 31), 0);
  append(POET_PLUS, draw(2) ? operand(kinds[0]) : 0.0f, 0);
  append(POET_SAVE, 0, count - 1);
  append(POET_NEXT, 0, 0);
}

#if POET_M0PLUS
/* Calls poet_chain_enter with other values in the registers that it must keep.
   Returns 0 if it has kept them. */
__attribute__((naked)) static uint32_t lost(struct poet_chain_state *s,
                                            const struct poet_step *first) {
  KEEPS_REGISTERS("poet_chain_enter");
}

static void run(void) {
  struct poet_chain chain;
  const uint32_t first = draw(3), elements = ELEMENTS - first - draw(3);
  poet_chain_open(&chain, draw(2) ? 64 : 0);
  poet_chain_clear(&chain);
  for (uint32_t i = 0; i < count; i++) {
    const struct operation s = steps[i];
    if (s.kind == POET_SET || s.kind == POET_KEEP || s.kind == POET_TIMES ||
        s.kind >= POET_PLUS)
      poet_chain_constant(&chain, s.kind, s.value);
    else if (s.kind == POET_SAVE)
      poet_chain_array(&chain, s.kind, &chain.steps[s.other]);
    else
      poet_chain_array(&chain, s.kind,
                       s.kind == POET_PUT ? results : arrays[s.other])
          ->second = s.kind == POET_TIMES_ELEMENT && s.value == 1 &&
                             steps[i + 2].kind == POET_SAVE
                         ? 24
                         : 0;
  }
  poet_chain_run(&chain, first, elements);
  for (uint32_t i = 0; i < count; i++)
    if (steps[i].kind == POET_SAVE)
      add_to_hash(poet_chain_saved(&chain.steps[steps[i].other]));
  struct poet_chain_state again = {.index = 4 * first, .end = 4 * first + 4};
  chain.steps[0].code = chain.code + poet_chain_offsets[POET_KEEP];
  chain.steps[1].code = chain.code + poet_chain_offsets[POET_NEXT];
  if (lost(&again, chain.steps))
    print("poet_chain_enter depends on registers");
}
#else
static void run(void) {
  const uint32_t first = draw(3), elements = ELEMENTS - first - draw(3);
  draw(2);
  for (uint32_t i = first; i < first + elements; i++) {
    float x = 0, kept = 0;
    for (struct operation *s = steps; s < steps + count; s++) {
      switch (s->kind) {
      case POET_TAKE:
        x = arrays[s->other][i];
        break;
      case POET_SET:
        x = s->value;
        break;
      case POET_KEEP:
        kept = x;
        x = s->value;
        break;
      case POET_SAVE:
        steps[s->other].value = x;
        break;
      case POET_PUT:
        results[i] = x;
        break;
      case POET_SQUARE:
        x *= x;
        break;
      case POET_TIMES_KEPT:
        x *= kept;
        break;
      case POET_TIMES_ELEMENT:
        x *= arrays[s->other][i];
        break;
      case POET_TIMES:
        x *= s->value;
        break;
      case POET_PLUS_KEPT:
        x += kept;
        break;
      case POET_PLUS_ELEMENT:
        x += arrays[s->other][i];
        break;
      case POET_PLUS:
      case POET_PLUS_ZERO:
        x += s->value;
        break;
      default:
        break;
      }
    }
  }
  for (uint32_t i = 0; i < count; i++)
    if (steps[i].kind == POET_SAVE)
      add_to_hash(steps[steps[i].other].value);
}
#endif

int main(void) {
  for (uint32_t i = 0; i < BATCHES; i++) {
    fill();
    for (uint32_t left = CHAINS; left; left--) {
      draw_chain();
      run();
      for (uint32_t j = 0; j < ELEMENTS; j++)
        add_to_hash(results[j]);
    }
    print_hex(hash);
  }
  return 0;
}
