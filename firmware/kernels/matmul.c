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

/* One row of y, from element `i` of it on, of columns that begin at `b`. */
static void multiply(const struct poet_call *call, struct poet_dots *dots,
                     const float *b, uint32_t i) {
  const struct poet_op *op = call->op;
  for (uint32_t column = 0; column < op->w; column += POET_DOTS) {
    const uint32_t count = poet_together(op->w - column);
    float sums[POET_DOTS];
    dots->b = b + column * dots->next;
    poet_dots(dots, count, sums);
    for (uint32_t j = 0; j < count; j++) {
      sums[j] *= op->epsilon;
    }
    poet_sink(call, 2, i + column, sums, count);
  }
}

void poet_matmul(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t flags = op->variant;
  const struct matrix a = matrix_of(op, op->h, op->k, flags);
  const struct matrix b = matrix_of(op, op->k, op->w, flags >> 1);
  const struct matrix y = matrix_of(op, op->h, op->w, flags >> 2 & 4u);
  struct poet_dots dots = {
      .a_step = a.column, .b_step = b.row, .next = b.column, .count = op->k};
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t head = 0; head < op->groups; head++) {
      const float *a_first =
          (const float *)call->in[0] + n * a.sample + head * a.head;
      const float *b_first =
          (const float *)call->in[1] + n * b.sample + head * b.head;
      for (uint32_t row = 0; row < op->h; row++) {
        dots.a = a_first + row * a.row;
        multiply(call, &dots, b_first,
                 n * y.sample + head * y.head + row * y.row);
      }
    }
  }
}
