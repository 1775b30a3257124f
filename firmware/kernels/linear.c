/*
 * linear.c - fully connected layer, and its two gradients, as tiles of sums
 * (tile.h). `inputs` is the number of features of a sample, c * h * w.
 *
 * The gradients of fewer than POET_TILE samples have loops of their own,
 * because their tiles would do little with each weight or input that they read.
 */
#include <string.h>

#include "poet/kernel.h"
#include "sink.h"
#include "tile.h"

enum { STRIP = 4 * POET_TILE };

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
  struct poet_tile t = {
      .a = {.lane = (int32_t)inputs, .column = 1},
      .b = {.lane = (int32_t)inputs, .column = 1},
      .columns = inputs,
      .rows = 1,
      .planes = 1,
      .tame = poet_tame(x, op->n * inputs, weight, op->k * inputs)};
  poet_tile_shape(&t);
  for (uint32_t n = 0; n < op->n; n += POET_TILE) {
    const uint32_t samples = poet_lanes(op->n - n);
    t.a.at = x + n * inputs;
    for (uint32_t k = 0; k < op->k; k += POET_TILE) {
      const uint32_t outputs = poet_lanes(op->k - k);
      float sums[POET_TILE][POET_TILE];
      t.b.at = weight + k * inputs;
      poet_tile(&t, samples, outputs, sums);
      for (uint32_t i = 0; i < samples; i++) {
        for (uint32_t j = 0; j < outputs; j++) {
          y[(n + i) * op->k + k + j] =
              bias != NULL ? sums[i][j] + bias[k + j] : sums[i][j];
        }
      }
    }
  }
}

/* Compute dx = ((dx + g[0] w_0) + g[1] w_1) + ..., where w_0, w_1, ... are
 * `rows` rows of w; `weight` points to the first of them. dx: (inputs), g:
 * (rows), weight: (rows, inputs) */
static void add_rows(float *dx, const float *g, const float *weight,
                     uint32_t inputs, uint32_t rows) {
  if (rows == POET_TILE) {
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

static void grad_input_of_few(const struct poet_op *op, const float *dy,
                              const float *weight, float *dx) {
  const uint32_t inputs = features(op);
  memset(dx, 0, op->n * inputs * sizeof *dx);
  for (uint32_t n = 0; n < op->n; n++) {
    for (uint32_t k = 0; k < op->k; k += POET_TILE) {
      add_rows(dx, dy + k, weight + k * inputs, inputs, poet_lanes(op->k - k));
    }
    dx += inputs;
    dy += op->k;
  }
}

void poet_linear_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *dy = call->in[0];     /* (n, k) */
  const float *weight = call->in[1]; /* (k, inputs) */
  float *dx = call->out;             /* (n, inputs) */
  const uint32_t inputs = features(op);
  if (POET_IS_FEW(op->n)) {
    grad_input_of_few(op, dy, weight, dx);
    return;
  }
  struct poet_tile t = {
      .a = {.lane = (int32_t)op->k, .column = 1},
      .b = {.lane = 1, .column = (int32_t)inputs},
      .columns = op->k,
      .rows = 1,
      .planes = 1,
      .tame = poet_tame(dy, op->n * op->k, weight, op->k * inputs)};
  poet_tile_shape(&t);
  for (uint32_t n = 0; n < op->n; n += POET_TILE) {
    const uint32_t samples = poet_lanes(op->n - n);
    t.a.at = dy + n * op->k;
    for (uint32_t c = 0; c < inputs; c += POET_TILE) {
      const uint32_t count = poet_lanes(inputs - c);
      float sums[POET_TILE][POET_TILE];
      t.b.at = weight + c;
      poet_tile(&t, samples, count, sums);
      for (uint32_t i = 0; i < samples; i++) {
        for (uint32_t j = 0; j < count; j++) {
          dx[(n + i) * inputs + c + j] = sums[i][j];
        }
      }
    }
  }
}

static void grad_weight_of_few(const struct poet_call *call, const float *x,
                               const float *dy) {
  const struct poet_op *op = call->op;
  const uint32_t inputs = features(op);
  for (uint32_t k = 0; k < op->k; k++) {
    for (uint32_t c = 0; c < inputs; c += STRIP) {
      const uint32_t count = inputs - c < STRIP ? inputs - c : STRIP;
      float sums[STRIP] = {0};
      for (uint32_t n = 0; n < op->n; n++) {
        const float g = dy[n * op->k + k], *from = x + n * inputs + c;
        for (uint32_t i = 0; i < count; i++) {
          sums[i] += g * from[i];
        }
      }
      poet_sink(call, 2, k * inputs + c, sums, count);
    }
  }
}

void poet_linear_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];  /* (n, inputs) */
  const float *dy = call->in[1]; /* (n, k) */
  const uint32_t inputs = features(op);
  if (POET_IS_FEW(op->n)) {
    grad_weight_of_few(call, x, dy);
    return;
  }
  struct poet_tile t = {.a = {.lane = 1, .column = (int32_t)op->k},
                        .b = {.lane = 1, .column = (int32_t)inputs},
                        .columns = op->n,
                        .rows = 1,
                        .planes = 1,
                        .tame =
                            poet_tame(x, op->n * inputs, dy, op->n * op->k)};
  poet_tile_shape(&t);
  for (uint32_t k = 0; k < op->k; k += POET_TILE) {
    const uint32_t outputs = poet_lanes(op->k - k);
    t.a.at = dy + k;
    for (uint32_t c = 0; c < inputs; c += POET_TILE) {
      const uint32_t count = poet_lanes(inputs - c);
      float sums[POET_TILE][POET_TILE];
      t.b.at = x + c;
      poet_tile(&t, outputs, count, sums);
      for (uint32_t i = 0; i < outputs; i++) {
        poet_sink(call, 2, (k + i) * inputs + c, sums[i], count);
      }
    }
  }
}
