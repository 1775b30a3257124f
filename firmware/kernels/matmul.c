/* matmul.c - products of matrices, one for each sample and head. Transposed
 * operands and heads that lie side by side in a row are steps through memory,
 * so that attention and all its gradients are this one kernel. */
#include "dots.h"
#include "poet/kernel.h"
#include "sink.h"

/* Where element (row, column) of a sample's and head's matrix lies. */
struct matrix {
  uint32_t sample, head, row, column; /* steps */
};

/* A matrix as the product sees it. `flags`: 1 it is stored transposed, 4 a row
 * holds those of all heads, one behind the other. */
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

void poet_matmul(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t rows[] = {op->h, op->k, op->h};
  const uint32_t columns[] = {op->k, op->w, op->w};
  const uint32_t flags[] = {op->variant, (uint32_t)op->variant >> 1,
                            (uint32_t)op->variant >> 2 & 4u};
  struct matrix m[3];
  for (uint32_t i = 0; i < 3; i++) {
    m[i] = matrix_of(op, rows[i], columns[i], flags[i]);
  }
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t head = 0; head < op->groups; head++) {
      const float *a =
          (const float *)call->in[0] + n * m[0].sample + head * m[0].head;
      const float *b =
          (const float *)call->in[1] + n * m[1].sample + head * m[1].head;
      uint32_t i = n * m[2].sample + head * m[2].head;
      for (uint32_t row = 0; row < op->h; row++) {
        const struct poet_line line = {a, m[0].column};
        for (uint32_t column = 0; column < op->w; column += POET_DOTS) {
          const uint32_t left = op->w - column;
          const uint32_t count = left < POET_DOTS ? left : POET_DOTS;
          const struct poet_line from = {b + column * m[1].column, m[1].row};
          float sums[POET_DOTS];
          poet_dots(line, from, m[1].column, op->k, count, sums);
          for (uint32_t j = 0; j < count; j++) {
            sums[j] *= op->epsilon;
          }
          poet_sink(call, 2, i + column, sums, count);
        }
        a += m[0].row;
        i += m[2].row;
      }
    }
  }
}
