/*
 * linear.c - fully connected layer, and its two gradients. `inputs` is the
 * number of features of a sample, c * h * w. Up to POET_DOTS outputs are
 * computed together, so that the row of the input is read once (dots.h).
 */
#include <string.h>

#include "dots.h"
#include "poet/kernel.h"
#include "sink.h"

static uint32_t features(const struct poet_op *op) {
  return op->c * op->h * op->w;
}

void poet_linear(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];      /* (n, inputs) */
  const float *weight = call->in[1]; /* (k, inputs) */
  const float *bias =
      op->input_count > 2 ? call->in[2] : NULL; /* (k), or NULL */
  float *y = call->out;                         /* (n, k) */
  const uint32_t inputs = features(op);
  struct poet_dots dots = {
      .a = x, .a_step = 1, .b_step = 1, .next = inputs, .count = inputs};

  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t k = 0; k < op->k; k += POET_DOTS) {
      const uint32_t count = poet_together(op->k - k);
      float sums[POET_DOTS];
      dots.b = weight + k * inputs;
      poet_dots(&dots, count, sums);
      for (uint32_t j = 0; j < count; j++) {
        *y++ = bias != NULL ? sums[j] + bias[k + j] : sums[j];
      }
    }
    dots.a += inputs;
  }
}

/* Compute dx = ((dx + g[0] w_0) + g[1] w_1) + ..., where w_0, w_1, ... are
 * `rows` rows of w; `weight` points to the first of them. dx: (inputs), g:
 * (rows), weight: (rows, inputs) */
static void add_rows(float *dx, const float *g, const float *weight,
                     uint32_t inputs, uint32_t rows) {
  if (rows == POET_DOTS) {
    const float *w1 = weight + inputs, *w2 = w1 + inputs, *w3 = w2 + inputs;
    for (uint32_t c = 0; c < inputs; c++) {
      float sum = dx[c] + g[0] * weight[c];
      sum += g[1] * w1[c];
      sum += g[2] * w2[c];
      dx[c] = sum + g[3] * w3[c];
    }
    return;
  }
  for (; rows; rows--) {
    for (uint32_t c = 0; c < inputs; c++) {
      dx[c] += *g * *weight++;
    }
    g++;
  }
}

void poet_linear_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *dy = call->in[0];     /* (n, k) */
  const float *weight = call->in[1]; /* (k, inputs) */
  float *dx = call->out;             /* (n, inputs) */
  const uint32_t inputs = features(op);

  memset(dx, 0, op->n * inputs * sizeof *dx);
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t k = 0; k < op->k; k += POET_DOTS) {
      const uint32_t rows = poet_together(op->k - k);
      add_rows(dx, dy + k, weight + k * inputs, inputs, rows);
    }
    dx += inputs;
    dy += op->k;
  }
}

void poet_linear_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];  /* (n, inputs) */
  const float *dy = call->in[1]; /* (n, k) */
  const uint32_t inputs = features(op);
  struct poet_dots dots = {
      .a = dy, .a_step = op->k, .b_step = inputs, .next = 1, .count = op->n};

  for (uint32_t k = 0; k < op->k; k++) {
    for (uint32_t c = 0; c < inputs; c += POET_DOTS) {
      const uint32_t count = poet_together(inputs - c);
      float sums[POET_DOTS];
      dots.b = x + c;
      poet_dots(&dots, count, sums);
      poet_sink(call, 2, k * inputs + c, sums, count);
    }
    dots.a++;
  }
}
