/*
 * matmul.c - matrix products y (h, w) = a (h, k) * b (k, w), one for each
 * sample (n) and head (groups).
 *
 * A matrix is described by steps: the distances in memory between its elements.
 * If an operand is transposed, or if heads lie side by side in a row, only the
 * steps differ. So attention and all its gradients need only this kernel.
 */
#include "few.h"
#include "poet/isa.h"
#include "poet/kernel.h"
#include "sink.h"
#include "tile.h"

enum { WIDE = POET_WIDE / 2 }; /* columns at a time */

/* Distances in floats: from one sample to the next, one head to the next, one
 * row to the next, and one column to the next. */
struct matrix {
  uint32_t sample, head, row, column;
};

/* Return the steps of a (rows, columns) matrix. `flags & 1`: the matrix is
 * stored transposed. `flags & 4`: the heads lie side by side, so in memory
 * each row of a head is followed by the same row of the next head. */
static struct matrix matrix_of(const struct poet_op *op, uint32_t rows,
                               uint32_t columns, uint32_t flags) {
  const uint32_t width = flags & 1 ? rows : columns;
  const uint32_t heads = op->groups;
  const uint32_t row = flags & 4 ? heads * width : width;
  return (struct matrix){.sample = heads * rows * columns,
                         .head = flags & 4 ? width : rows * columns,
                         .row = flags & 1 ? 1 : row,
                         .column = flags & 1 ? row : 1};
}

/* Multiply all elements of a matrix whose rows lie `next` apart, if their sums
 * are finished. */
static void multiply(const struct poet_call *call, float *x, uint32_t next,
                     uint32_t rows, uint32_t columns) {
  const float factor = call->op->factor;
  for (; rows && call->last && factor != 1.0f; rows--) {
    for (uint32_t i = 0; i < columns; i++) {
      x[i] *= factor;
    }
    x += next;
  }
}

#if POET_FEW
/* Compute products of few lanes or terms, into the output. */
static void products_of_few(const struct poet_call *call,
                            const struct matrix *a, const struct matrix *b,
                            const struct matrix *y) {
  const struct poet_op *op = call->op;
  struct poet_few f = {.a = {.lane = a->row, .term = a->column, .lanes = op->h},
                       .b = {.lane = b->column, .term = b->row, .lanes = op->w},
                       .terms = op->k,
                       .a_next = y->row,
                       .b_next = 1,
                       .begun = !call->first};
  const float *as = call->in[0], *bs = call->in[1];
  float *to = call->out;
  for (uint32_t n = op->n; n; n--) {
    f.a.at = as, f.b.at = bs, f.sums = to;
    for (uint32_t head = op->groups; head; head--) {
      poet_few(&f);
      multiply(call, f.sums, y->row, op->h, op->w);
      f.a.at += a->head, f.b.at += b->head, f.sums += y->head;
    }
    as += a->sample, bs += b->sample, to += y->sample;
  }
}
#endif

void poet_matmul(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t flags = op->variant;
  const struct matrix a = matrix_of(op, op->h, op->k, flags);
  const struct matrix b = matrix_of(op, op->k, op->w, flags >> 1);
  const struct matrix y = matrix_of(op, op->h, op->w, flags >> 2 & 4u);
  const bool direct = op->sink == POET_SINK_store &&
                      ((call->first && call->last) || call->sums == call->out);
#if POET_FEW
  if (direct && poet_is_few(op->h, op->w, op->k)) {
    products_of_few(call, &a, &b, &y);
    return;
  }
#endif
  struct poet_tile t = {
      .a = {.lane = (int32_t)a.row, .column = (int32_t)a.column},
      .b = {.lane = (int32_t)b.column, .column = (int32_t)b.row},
      .columns = op->k,
      .rows = 1,
      .planes = 1,
      .begun = !call->first,
      .tame = poet_tame(call->in[0], op->n * a.sample, call->in[1],
                        op->n * b.sample)};
  poet_tile_shape(&t);
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t head = 0; head < op->groups; head++) {
      const float *a_first = (const float *)call->in[0] + n * a.sample +
                             head * a.head; /* (h, k) of this head */
      const float *b_first = (const float *)call->in[1] + n * b.sample +
                             head * b.head; /* (k, w) of this head */
      if (POET_M0PLUS && direct) {
        float *out = (float *)call->out + n * y.sample + head * y.head;
        t.a.at = a_first, t.b.at = b_first;
        poet_tile(&t, op->h, op->w, out, y.row);
        multiply(call, out, y.row, op->h, op->w);
        continue;
      }
      for (uint32_t row = 0; row < op->h; row += POET_TILE) {
        const uint32_t rows = poet_lanes(op->h - row);
        const uint32_t first = n * y.sample + head * y.head + row * y.row;
        t.a.at = a_first + row * a.row;
        uint32_t column = 0;
        /* One row changes no other sums on a Cortex-M4F. */
        const bool alone = POET_M4F && rows == 1;
        if ((rows == POET_TILE || alone) && direct) {
          column = alone ? op->w : poet_full_lanes(op->w);
          float *out = (float *)call->out + first;
          t.b.at = b_first;
          poet_tile(&t, rows, column, out, y.row);
          multiply(call, out, y.row, rows, column);
        }
        while (column < op->w) {
          const uint32_t columns = poet_wide_lanes(op->w - column, WIDE);
          const struct poet_place place = {.first = first + column,
                                           .rows = rows,
                                           .columns = columns,
                                           .row = y.row,
                                           .column = 1};
          float sums[POET_TILE * WIDE];
          t.b.at = b_first + column * b.column;
          poet_begin_tile(call, &place, sums, WIDE);
          poet_tile(&t, rows, columns, sums, WIDE);
          multiply(call, sums, WIDE, rows, columns);
          poet_sink_tile(call, 2, &place, sums, WIDE);
          column += columns;
        }
      }
    }
  }
}
