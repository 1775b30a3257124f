#include "reference.h"

#include <stdlib.h>
#include <string.h>

#include "poet/kernel.h"

struct reference reference;

/* ---- records ------------------------------------------------------------ */

static bool shares(const struct poet_tensor *a, const struct poet_tensor *b) {
  return a->block == b->block &&
         (!(a->flags & POET_FLAG_SHARED) || a->at == b->at);
}

static uint32_t current_of(const struct poet_tensor *next) {
  for (uint32_t i = 0; i < reference.stored; i++) {
    const struct poet_tensor *tensor = &reference.record[i];
    if (tensor->place == POET_PLACE_CURRENT && shares(next, tensor)) {
      return i;
    }
  }
  return POET_NONE;
}

static int64_t below(uint32_t tensor) {
  for (uint32_t i = reference.stored; i < reference.count; i++) {
    const struct poet_op *op = &reference.op[i];
    if ((op->kernel == POET_KERNEL_embedding ||
         op->kernel == POET_KERNEL_embedding_grad) &&
        op->input[0] == tensor) {
      return op->k;
    }
    if ((op->kernel == POET_KERNEL_softmax_xent ||
         op->kernel == POET_KERNEL_softmax_xent_grad ||
         op->kernel == POET_KERNEL_weighted_xent ||
         op->kernel == POET_KERNEL_weighted_xent_grad) &&
        op->input[1] == tensor) {
      return op->c;
    }
  }
  return -1;
}

void reference_load(struct poet *p) {
  for (uint32_t i = 0; i < reference.count; i++) {
    free(reference.data[i]);
  }
  reference.count = p->model.tensor_count;
  reference.stored = p->model.stored_count;
  reference.loss = p->loss;
  for (uint32_t i = 0; i < reference.count; i++) {
    struct poet_tensor *record = &reference.record[i];
    struct poet_pieces pieces;
    rule(!poet_read_tensor(p, i, record) &&
             !poet_read_pieces(p, record, &pieces),
         "a loaded model has records");
    rule(i < reference.stored || !poet_read_op(p, i, &reference.op[i]),
         "a loaded model has operators");
    reference.cut[i] = pieces.cut;
    reference.data[i] = calloc(1, record->size_bytes);
  }
  for (uint32_t i = 0; i < reference.count; i++) {
    const struct poet_tensor *record = &reference.record[i];
    const bool is_next = record->place == POET_PLACE_NEXT;
    const uint32_t old = is_next ? current_of(record) : POET_NONE;
    rule(!is_next || (old != POET_NONE &&
                      reference.record[old].size_bytes == record->size_bytes),
         "a NEXT tensor has a CURRENT one");
    reference.current[i] = old;
    reference.below[i] = i < reference.stored ? below(i) : -1;
  }
}

uint64_t reference_bytes(void) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < reference.count; i++) {
    total += reference.record[i].size_bytes;
  }
  return total;
}

static double at_least_1(uint32_t size) {
  return size ? size : 1;
}

double reference_work(void) {
  double total = 0;
  for (uint32_t i = reference.stored; i < reference.count; i++) {
    const struct poet_op *op = &reference.op[i];
    const double in = (double)op->n * at_least_1(op->c) * at_least_1(op->h) *
                      at_least_1(op->w);
    const double out = (double)op->n * at_least_1(op->k) * at_least_1(op->oh) *
                       at_least_1(op->ow);
    total += (in + out) * (1.0 + op->kernel_h) * (1.0 + op->kernel_w) *
             (1.0 + op->k + op->c);
  }
  return total;
}

/* ---- values ------------------------------------------------------------- */

void reference_fill(uint32_t tensor, uint8_t *values, bool wild) {
  const uint32_t size = reference.record[tensor].size_bytes;
  const bool are_whole = reference.below[tensor] > 0;
  uint32_t end = are_whole ? (uint32_t)reference.below[tensor] : 1;
  end = end > 8 && random_below(2) ? end / 4 : end;
  for (uint32_t at = 0; at + 4 <= size; at += 4) {
    const uint32_t whole =
        random_below(wild && !random_below(64) ? 2 * end : end);
    const float real =
        ((float)random_below(1u << 24) - (float)(1 << 23)) * 0x1p-25f;
    memcpy(values + at, are_whole ? (const void *)&whole : &real, 4);
  }
}

/* Written for itself, from the words of FORMAT.md: part by part. */
static void reorder(const struct poet_cut *c, const uint8_t *from, uint8_t *to,
                    bool into_parts) {
  uint32_t at = 0;
  for (uint32_t a = 0; a < c->size[0]; a += c->part[0]) {
    for (uint32_t b = 0; b < c->size[1]; b += c->part[1]) {
      for (uint32_t d = 0; d < c->size[2]; d += c->part[2]) {
        for (uint32_t i = a; i < a + c->part[0] && i < c->size[0]; i++) {
          for (uint32_t j = b; j < b + c->part[1] && j < c->size[1]; j++) {
            for (uint32_t k = d; k < d + c->part[2] && k < c->size[2]; k++) {
              const size_t row =
                  (((size_t)i * c->size[1] + j) * c->size[2] + k) *
                  c->unit_bytes;
              memcpy(to + (into_parts ? at : row),
                     from + (into_parts ? row : at), c->unit_bytes);
              at += c->unit_bytes;
            }
          }
        }
      }
    }
  }
}

void reference_to_parts(uint32_t tensor, const uint8_t *rows, uint8_t *parts) {
  reorder(&reference.cut[tensor], rows, parts, true);
}

void reference_to_rows(uint32_t tensor, const uint8_t *parts, uint8_t *rows) {
  reorder(&reference.cut[tensor], parts, rows, false);
}

/* ---- steps -------------------------------------------------------------- */

/* Written for itself, from the words of FORMAT.md on `period`. */
static bool runs_in(struct poet_op *op, uint32_t *step) {
  if (!op->period || !poet_must_overwrite(op)) {
    return true;
  }
  const uint32_t updates = *step / op->period;
  const uint32_t left = *step - updates * op->period;
  if (op->sink == POET_SINK_accumulate) {
    op->sink = left == 1 ? POET_SINK_store : POET_SINK_accumulate;
    return true;
  }
  *step = updates;
  return left == 0;
}

static void compute(uint32_t number, uint32_t step) {
  const struct poet_op *op = &reference.op[number];
  struct poet_op changed = *op;
  const bool runs = runs_in(&changed, &step);
  const uint32_t size = reference.record[number].size_bytes;
  struct poet_call call = {.op = &changed,
                           .whole = &changed,
                           .first = true,
                           .last = true,
                           .step = step};
  for (uint32_t i = 0; i < op->input_count; i++) {
    const uint32_t input = op->input[i];
    rule(reference.record[input].size_bytes == poet_operand_bytes(op, i),
         "an operand has the bytes of its tensor");
    call.in[i] = reference.data[input];
  }
  rule(size == poet_operand_bytes(op, op->input_count),
       "an output has the bytes of its tensor");
  call.out = reference.data[number];
  for (uint32_t i = 0; i < op->input_count; i++) {
    if (op->input[i] == op->overwrites) { /* later operators may read it */
      memcpy(call.out, reference.data[op->input[i]], size);
      call.in[i] = call.out;
    }
  }
  if (runs) {
    poet_kernel(op->kernel)(&call);
  }
}

bool reference_step(uint32_t step) {
  bool finite = true;
  for (uint32_t i = reference.stored; i < reference.count; i++) {
    compute(i, step);
    finite &=
        (reference.record[i].place != POET_PLACE_NEXT ||
         poet_is_finite(reference.data[i], reference.record[i].size_bytes)) &&
        (i != reference.loss || poet_is_finite(reference.data[i], 4));
  }
  return finite;
}

void reference_commit(void) {
  for (uint32_t i = reference.stored; i < reference.count; i++) {
    if (reference.current[i] != POET_NONE) {
      memcpy(reference.data[reference.current[i]], reference.data[i],
             reference.record[i].size_bytes);
    }
  }
}
