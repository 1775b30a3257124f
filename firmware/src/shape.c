/*
 * shape.c - the number and sizes of the operands that an operator's record
 * describes, by the rows of isa.def.
 *
 * It keeps no state and trusts no field of the record. The decoder and probe.c
 * compare these sizes with the operands in the arena before a kernel runs.
 */
#include <stddef.h>
#include <string.h>

#include "runtime.h"

enum {
  MAY_1 = 1,
  MAY_2 = 2,
  MAY_3 = 4,
  MAY_4 = 8,
  MAY = 15,
  MUST = 16,
  MUST_1 = MUST | MAY_1,
  MUST_2 = MUST | MAY_2,
  CONV = 32,
  POOL = 64,
  SLICE = CONV | POOL,
  ORDER = 128,
  STEPS = 256,
  BACK = 512,
  CELL = 1024
};

/* The column `parts` as bits of axes, in the order of enum poet_axis, which the
 * compiler finds: those of the words after the character `before`. The first
 * letter of a word is its axis. */
#define BITS                                                                   \
  "\0\0\0\4\0\0\0\200\10\0\0\40\0\0\2\100\1\0\0\0\0\0\0\20\0\0\0\0\0\0\0"
#define CHARACTER(text, i) (text)[(i) < sizeof(text) ? (i) : sizeof(text) - 1]
#define WORD(text, i, before)                                                  \
  (CHARACTER(text, i) == (before) && CHARACTER(text, (i) + 1) >= 'a'           \
       ? (uint8_t)BITS[CHARACTER(text, (i) + 1) & 31]                          \
       : 0)
#define WORDS(text, i, before)                                                 \
  (WORD(text, i, before) | WORD(text, (i) + 1, before) |                       \
   WORD(text, (i) + 2, before) | WORD(text, (i) + 3, before))
#define AXES(text, before)                                                     \
  (WORDS(text, 0, before) | WORDS(text, 4, before) | WORDS(text, 8, before) |  \
   WORDS(text, 12, before) | WORDS(text, 16, before))

/* The columns `shapes`, `rules` and `parts` of one row of isa.def. */
struct row {
  char shapes[8];
  uint16_t rules;
  uint8_t summed; /* bits of axes */
  uint8_t free;
};

static const struct row rows[] = {
#define KERNEL(code, name, inputs, shapes, rules, parts, ...)                  \
  [code] = {shapes, rules, AXES(parts, '+'), AXES(" " parts, ' ')},
#include "poet/isa.def"
};
#define KERNEL(code, name, inputs, shapes, rules, parts, ...)                  \
  _Static_assert(sizeof(parts) <= 20, "AXES reads 20 characters");
#include "poet/isa.def"

/* Return the bytes of a * b * c * d elements of 32 bits. Return 0 if there are
 * no elements, or if the size exceeds 32 bits. */
static uint32_t bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t factors[] = {a, b, c, d};
  uint64_t product = 4;
  for (unsigned i = 0; i < 4; i++) {
    product *= factors[i];
    if (product > UINT32_MAX) {
      return 0;
    }
  }
  return (uint32_t)product;
}

/* Set the sizes of a tensor with the sizes of x, but with size 1 along each
 * axis whose bit is set in `axes`. */
static void without(const struct poet_op *op, uint32_t axes, uint32_t *size) {
  size[0] = axes & 1 ? 1 : op->n;
  size[1] = axes & 2 ? 1 : op->c;
  size[2] = axes & 4 ? 1 : op->h;
  size[3] = axes & 8 ? 1 : op->w;
}

static void letter_sizes(const struct poet_op *op, int letter, uint32_t *size) {
  const uint32_t n = op->n, c = op->c, h = op->h, w = op->w;
  const uint32_t k = op->k, oh = op->oh, ow = op->ow, groups = op->groups;
  const uint32_t kernel_h = op->kernel_h, kernel_w = op->kernel_w;
  memset(size, 0, POET_OPERAND_AXES * sizeof *size);
  /* c + k cannot overflow if the sizes of both inputs are valid */
  switch (letter) {
#define SHAPE(letter, axis_0, axis_1, axis_2, axis_3)                          \
  case letter:                                                                 \
    size[0] = axis_0, size[1] = axis_1, size[2] = axis_2, size[3] = axis_3;    \
    break;
#include "poet/isa.def"
  case 'A':
  case 'R':
    without(op, op->variant, size);
    break;
  case 'B':
    without(op, op->variant >> 4, size);
    break;
  default:
    break;
  }
}

static uint32_t letter_bytes(const struct poet_op *op, int letter) {
  uint32_t size[POET_OPERAND_AXES];
  letter_sizes(op, letter, size);
  return bytes(size[0], size[1], size[2], size[3]);
}

/* Return true if `out` windows can lie over `size` elements with `pad` elements
 * of padding before them. The last window must overlap the elements. But if
 * `pad` is at least as wide as the window, the last window may also lie in
 * `pad` elements of padding after the elements. */
static bool slides(uint32_t size, uint32_t out, uint32_t window,
                   uint32_t stride, uint32_t pad) {
  const uint32_t last = pad < window ? size + pad - 1 : size + 2 * pad - window;
  return window && stride && out - 1 <= last / stride;
}

static bool is_an_order(uint32_t variant) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < 4; i++) {
    found |= 1u << (variant >> 2 * i & 3u);
  }
  return found == 15;
}

/* Return true if `size` is `times` w, which is not 0. */
static bool is_times(const struct poet_op *op, uint32_t size, uint32_t times) {
  return op->w && size % op->w == 0 && size / op->w == times;
}

/* Check a layer along time: (n, c, h, w) are its states. dy has size 1 along h
 * or, with cells (h is 4), the size of the states. Without gates, k is w. */
static bool steps_are_sound(const struct poet_op *op, uint32_t rules) {
  const bool is_lstm = rules & CELL, cells = is_lstm && op->h == 4;
  const uint32_t gates = is_lstm ? 4 : op->k == op->w ? 1 : 3;
  return op->variant == (cells ? 0x50 : 0x54) &&
         op->h == 2u + is_lstm + cells && is_times(op, op->k, gates) &&
         (!(rules & BACK) || is_times(op, op->oh, gates == 1 ? 1 : 4) ||
          (gates > 1 && is_times(op, op->oh, 5)));
}

static bool geometry_is_sound(const struct poet_op *op, uint32_t rules) {
  if (rules & STEPS) {
    return steps_are_sound(op, rules);
  }
  if (rules & ORDER) {
    return is_an_order(op->variant);
  }
  if ((rules & SLICE) == SLICE) {
    return op->oh <= op->c && op->k <= op->c - op->oh;
  }
  if (!(rules & (CONV | POOL))) {
    return true;
  }
  if (!slides(op->h, op->oh, op->kernel_h, op->stride_h, op->pad_h) ||
      !slides(op->w, op->ow, op->kernel_w, op->stride_w, op->pad_w)) {
    return false;
  }
  if (rules & CONV) {
    return op->groups && op->c % op->groups == 0 && op->k % op->groups == 0;
  }
  return op->pad_h < op->kernel_h && op->pad_w < op->kernel_w;
}

/* Return true if the sink has the right number of inputs after the kernel's
 * `own` inputs. Each input of the sink has the size of the gradient. */
static bool sink_is_sound(const struct poet_op *op, uint32_t own) {
  const uint32_t extra = op->input_count - own;
  switch (op->sink) {
  case POET_SINK_store:
    return extra == 0;
  case POET_SINK_accumulate:
  case POET_SINK_sgd:
    return extra == 1;
  /* without weight decay, the weights may be missing */
  case POET_SINK_momentum:
    return extra == 2 || (extra == 1 && op->weight_decay == 0.0f);
  default:
    return false;
  }
}

/* Return true if the overwritten tensor occurs once among the inputs, as an
 * input whose bit is set in `may`. If `must` is false, it is also correct that
 * the operator overwrites no input. */
static bool overwriting_is_sound(const struct poet_op *op, uint32_t may,
                                 bool must) {
  uint32_t found = 0;
  if (op->overwrites == POET_NONE) {
    return !must;
  }
  for (uint32_t i = 0; i < op->input_count; i++) {
    found |= (uint32_t)(op->input[i] == op->overwrites) << i;
  }
  return found && !(found & (found - 1)) && !(found & ~may);
}

/* Return the number of the kernel's inputs, without the inputs of its sink. */
static uint32_t own_inputs(const struct row *row) {
  uint32_t count = 0;
  while (row->shapes[count] >= 'A') {
    count++;
  }
  return count;
}

/* Check the rules about the number of inputs, the sink and the overwritten
 * input. */
static bool operands_are_sound(const struct poet_op *op, const struct row *row,
                               uint32_t own) {
  const bool last_may_miss = row->shapes[own - 1] >= 'a';
  if (row->shapes[own] == '+') {
    const bool must = op->sink != POET_SINK_store;
    return op->input_count >= own && sink_is_sound(op, own) &&
           overwriting_is_sound(op, (uint32_t)must << own, must);
  }
  return op->sink == POET_SINK_none &&
         (op->input_count == own ||
          (last_may_miss && op->input_count + 1u == own)) &&
         overwriting_is_sound(op, row->rules & MAY, row->rules & MUST);
}

/* Return the letter of operand `index`. The operand exists. */
static int letter_of(const struct poet_op *op, uint32_t index) {
  const struct row *row = &rows[op->kernel];
  return index < op->input_count && index < own_inputs(row)
             ? row->shapes[index] & ~('a' - 'A')
             : row->shapes[strlen(row->shapes) - 1];
}

uint32_t poet_operand_bytes(const struct poet_op *op, uint32_t index) {
  if (op->kernel >= sizeof rows / sizeof *rows || !rows[op->kernel].shapes[0]) {
    return 0;
  }
  const struct row *row = &rows[op->kernel];
  if (op->input_count > POET_INPUTS || index > op->input_count ||
      !operands_are_sound(op, row, own_inputs(row)) ||
      !geometry_is_sound(op, row->rules)) {
    return 0;
  }
  return letter_bytes(op, letter_of(op, index));
}

bool poet_must_overwrite(const struct poet_op *op) {
  return op->sink > POET_SINK_store || (rows[op->kernel].rules & MUST);
}

bool poet_may_overwrite(const struct poet_op *op, uint32_t input) {
  return (rows[op->kernel].rules & MAY) >> input & 1;
}

bool poet_is_convolution(const struct poet_op *op) {
  return (rows[op->kernel].rules & SLICE) == CONV;
}

/* The fields n to oh follow one another, in the order of enum poet_axis. */
_Static_assert(offsetof(struct poet_op, oh) ==
                   offsetof(struct poet_op, n) +
                       4 * (POET_AXIS_oh - POET_AXIS_n),
               "as in enum poet_axis");

static uint32_t *field(struct poet_op *op, uint32_t axis) {
  return (uint32_t *)(void *)((uint8_t *)op + offsetof(struct poet_op, n)) +
         axis - POET_AXIS_n;
}

uint32_t poet_axis_size(const struct poet_op *op, uint32_t axis) {
  return axis == POET_AXIS_pass ? 2
         : axis == POET_AXIS_groups
             ? op->groups
             : *field((struct poet_op *)(uintptr_t)op, axis);
}

void poet_cut_axis(struct poet_op *op, uint32_t axis, uint32_t size) {
  if (axis == POET_AXIS_groups) {
    if (poet_is_convolution(op)) {
      op->c = op->c / op->groups * size;
      op->k = op->k / op->groups * size;
    }
    op->groups = (uint16_t)size;
  } else if (axis != POET_AXIS_pass) {
    *field(op, axis) = size;
  }
}

static bool has_grouped_channels(const struct poet_op *op) {
  return poet_is_convolution(op) && op->groups != 1;
}

bool poet_has_windows(const struct poet_op *op) {
  const uint32_t rules = rows[op->kernel].rules & SLICE;
  return rules == CONV || rules == POOL;
}

/* An operator whose windows reach all rows can be cut along rows. Then each
 * row of one operand shares a window with rows of the other one. */
static bool has_bands(const struct poet_op *op) {
  return op->pad_h < op->kernel_h && op->kernel_h + op->stride_h <= UINT8_MAX &&
         op->h + op->pad_h < op->oh * op->stride_h + op->kernel_h;
}

/* A convolution with groups has no cut of c or k alone. */
static uint32_t without_grouped(const struct poet_op *op, uint32_t axes) {
  const uint32_t channels = 1u << POET_AXIS_c | 1u << POET_AXIS_k;
  if (poet_has_windows(op) && !has_bands(op)) {
    axes &= ~(1u << POET_AXIS_h | 1u << POET_AXIS_oh);
  }
  return !poet_is_convolution(op)   ? axes
         : has_grouped_channels(op) ? axes & ~channels
                                    : axes & ~(1u << POET_AXIS_groups);
}

uint32_t poet_summed_axes(const struct poet_op *op) {
  return op->kernel == POET_KERNEL_reduce ||
                 op->kernel == POET_KERNEL_reduce_product
             ? (op->variant & 15u) << POET_AXIS_n
             : without_grouped(op, rows[op->kernel].summed);
}

uint32_t poet_free_axes(const struct poet_op *op) {
  return without_grouped(op, rows[op->kernel].free) & ~poet_summed_axes(op);
}

static void exchange(uint32_t *size, uint32_t i) {
  const uint32_t kept = size[i];
  size[i] = size[i + 1];
  size[i + 1] = kept;
}

static void sizes_in_order(const struct poet_op *op, uint32_t index,
                           uint32_t *size) {
  const int letter = letter_of(op, index);
  letter_sizes(op, letter, size);
  if (letter >= 'M' && letter <= 'O') { /* of matmul */
    const uint32_t bit = (uint32_t)letter - 'M';
    if (letter != 'O' && (op->variant >> bit & 1)) {
      exchange(size, 2);
    }
    if (op->variant >> (2 + bit) & 1) {
      exchange(size, 1);
    }
  }
  if (rows[op->kernel].rules & ORDER && index == op->input_count) {
    const uint32_t from[] = {size[0], size[1], size[2], size[3]};
    for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
      size[j] = from[op->variant >> 2 * j & 3u];
    }
  }
}

uint8_t poet_operand_axes(const struct poet_op *op, uint32_t index,
                          struct poet_axes *to) {
  /* The formulas of a shape, computed with these numbers instead of sizes, give
   * the number of an axis, or none of these numbers. */
  enum { FIRST = 16, GROUPS = FIRST << POET_AXIS_groups };
  struct poet_op names = *op;
  const uint32_t cuts = poet_free_axes(op) | poet_summed_axes(op);
  uint32_t number[POET_OPERAND_AXES];
  names.n = FIRST << POET_AXIS_n;
  names.c = has_grouped_channels(op) ? GROUPS : FIRST << POET_AXIS_c;
  names.h = FIRST << POET_AXIS_h;
  names.w = FIRST << POET_AXIS_w;
  names.k = has_grouped_channels(op) ? GROUPS : FIRST << POET_AXIS_k;
  if (rows[op->kernel].rules & STEPS && letter_of(op, index) != 'H') {
    names.k = 0; /* only rows of the recurrent weight are cut */
  }
  names.oh = FIRST << POET_AXIS_oh;
  names.ow = names.kernel_h = names.kernel_w = 0;
  names.groups = !poet_is_convolution(op)   ? GROUPS
                 : has_grouped_channels(op) ? 2 * GROUPS
                                            : 1;
  sizes_in_order(op, index, to->size);
  sizes_in_order(&names, index, number);
  for (uint32_t j = 0; j < POET_OPERAND_AXES; j++) {
    to->axis[j] = POET_AXES;
    for (uint32_t axis = 0; axis < POET_AXES; axis++) {
      if (number[j] == (uint32_t)FIRST << axis && (cuts >> axis & 1)) {
        to->axis[j] = (uint8_t)axis;
      }
    }
  }
  const uint32_t of_rows = cuts & (1u << POET_AXIS_h | 1u << POET_AXIS_oh);
  const bool twice = op->kernel == POET_KERNEL_maxpool2d_grad && index == 0;
  if (!of_rows || !poet_has_windows(op) || number[2] < FIRST ||
      (to->axis[2] < POET_AXES && !twice)) {
    return 0;
  }
  to->axis[2] = of_rows >> POET_AXIS_h & 1 ? POET_AXIS_h : POET_AXIS_oh;
  return op->kernel_h > 1 || op->stride_h > 1 ? 1 + twice : 0;
}
