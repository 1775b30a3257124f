/*
 * shape.c - the number and sizes of the operands that an operator's record
 * describes, by the rows of isa.def.
 *
 * It keeps no state and trusts no field of the record. The decoder and probe.c
 * compare these sizes with the operands in the arena before a kernel runs, so
 * that the kernel cannot access memory outside of its operands.
 */
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
  ORDER = 128
};

/* The columns `shapes` and `rules` of one row of isa.def. */
struct row {
  char shapes[8];
  uint8_t rules;
};

static const struct row rows[] = {
#define KERNEL(code, name, inputs, shapes, rules, ...) [code] = {shapes, rules},
#include "poet/isa.def"
};

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

/* Return the bytes of a tensor with the sizes of x, but with size 1 along each
 * axis whose bit is set in `axes`. */
static uint32_t without(const struct poet_op *op, uint32_t axes) {
  return bytes(axes & 1 ? 1 : op->n, axes & 2 ? 1 : op->c, axes & 4 ? 1 : op->h,
               axes & 8 ? 1 : op->w);
}

static uint32_t letter_bytes(const struct poet_op *op, int letter) {
  const uint32_t n = op->n, c = op->c, h = op->h, w = op->w;
  const uint32_t k = op->k, oh = op->oh, ow = op->ow, groups = op->groups;
  const uint32_t kernel_h = op->kernel_h, kernel_w = op->kernel_w;
  /* c + k cannot overflow if the sizes of both inputs are valid */
  switch (letter) {
#define SHAPE(letter, axis_0, axis_1, axis_2, axis_3)                          \
  case letter:                                                                 \
    return bytes(axis_0, axis_1, axis_2, axis_3);
#include "poet/isa.def"
  case 'A':
  case 'R':
    return without(op, op->variant);
  case 'B':
    return without(op, op->variant >> 4);
  default:
    return 0;
  }
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

/* Return true if the variant contains each of the four axes once. */
static bool is_an_order(uint32_t variant) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < 4; i++) {
    found |= 1u << (variant >> 2 * i & 3u);
  }
  return found == 15;
}

/* Check the kernel's rules about sizes, window and groups. */
static bool geometry_is_sound(const struct poet_op *op, uint32_t rules) {
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

uint32_t poet_operand_bytes(const struct poet_op *op, uint32_t index) {
  if (op->kernel >= sizeof rows / sizeof *rows || !rows[op->kernel].shapes[0]) {
    return 0;
  }
  const struct row *row = &rows[op->kernel];
  const uint32_t own = own_inputs(row);
  if (op->input_count > POET_INPUTS || index > op->input_count ||
      !operands_are_sound(op, row, own) || !geometry_is_sound(op, row->rules)) {
    return 0;
  }
  if (index < op->input_count && index < own) {
    return letter_bytes(op, row->shapes[index] & ~('a' - 'A'));
  }
  return letter_bytes(op, row->shapes[strlen(row->shapes) - 1]);
}
