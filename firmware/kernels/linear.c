/*
 * linear.c - fully connected layer, and its two gradients, as tiles of sums
 * (tile.h). `inputs` is the number of features of a sample, c * h * w.
 *
 * The gradients of fewer than POET_TILE samples have loops of their own,
 * because their tiles would do little with each weight or input that they read.
 */
#include <string.h>

#include "few.h"
#include "poet/isa.h"
#include "poet/kernel.h"
#include "sink.h"
#include "m4f/strip_m4f.h"
#include "tile.h"

enum { STRIP = 64 }; /* gradients at a time */
/* The same of several samples: rows and columns. A row has fewer calls. */
enum {
  DOWN = POET_M0PLUS ? 1 : POET_TILE,
  ACROSS = POET_TILE * POET_WIDE / DOWN
};

/* Measured: up to so many products or terms, a Cortex-M4F needs no tiles. */
enum { SIMPLE = 80, FEW_TERMS = 8 };

/* Copy rows of sums. Rows lie `from_row` and `to_row` floats apart. */
static void copy(const float *from, uint32_t from_row, uint32_t rows,
                 uint32_t columns, float *to, uint32_t to_row) {
  for (; rows; rows--) {
    memcpy(to, from, columns * sizeof *to);
    from += from_row, to += to_row;
  }
}

static uint32_t features(const struct poet_op *op) {
  return op->c * op->h * op->w;
}

#if POET_FEW
/* poet_few without a set-up, two sums at a time: faster for few products. */
static inline void simple(const float *a, uint32_t a_lane, uint32_t a_term,
                          uint32_t a_lanes, const float *b, uint32_t b_lane,
                          uint32_t b_term, uint32_t b_lanes, uint32_t terms,
                          bool begun, float *sums) {
  for (; a_lanes; a_lanes--) {
    const float *of_lane = b;
    uint32_t left = b_lanes;
    for (; left >= 2; left -= 2) {
      const float *x = a, *y0 = of_lane, *y1 = y0 + b_lane;
      of_lane = y1 + b_lane;
      float s0 = 0.0f, s1 = 0.0f;
      if (begun) {
        s0 = sums[0], s1 = sums[1];
      }
      for (uint32_t i = terms; i; i--) {
        const float g = *x, h0 = *y0, h1 = *y1;
        s0 += g * h0, s1 += g * h1;
        x += a_term, y0 += b_term, y1 += b_term;
      }
      *sums++ = s0, *sums++ = s1;
    }
    if (left) {
      const float *x = a, *y = of_lane;
      float sum = begun ? *sums : 0.0f;
      for (uint32_t i = terms; i; i--) {
        sum += *x * *y;
        x += a_term, y += b_term;
      }
      *sums++ = sum;
    }
    a += a_lane;
  }
}

/* Compute a layer of few products, without the set-up of tiles. */
static void linear_of_few(const struct poet_call *call, const float *bias) {
  const struct poet_op *op = call->op;
  const uint32_t inputs = features(op);
  float *y = call->out;
  if (op->n * op->k * inputs <= SIMPLE) {
    simple(call->in[0], inputs, 1, op->n, call->in[1], inputs, 1, op->k, inputs,
           !call->first, y);
  } else {
    const struct poet_few few = {
        .a = {.at = call->in[0], .lane = inputs, .term = 1, .lanes = op->n},
        .b = {.at = call->in[1], .lane = inputs, .term = 1, .lanes = op->k},
        .terms = inputs,
        .sums = y,
        .a_next = op->k,
        .b_next = 1,
        .begun = !call->first};
    poet_few(&few);
  }
  for (uint32_t n = op->n; n && bias != NULL; n--) {
    for (uint32_t k = 0; k < op->k; k++) {
      *y++ += bias[k];
    }
  }
}
#endif

void poet_linear(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];      /* (n, inputs) */
  const float *weight = call->in[1]; /* (k, inputs) */
  const float *bias =
      op->input_count > 2 && call->last ? call->in[2] : NULL; /* (k) */
  float *y = call->out;                                       /* (n, k) */
  const uint32_t inputs = features(op);
#if POET_FEW
  if (poet_is_few(op->n, op->k, inputs)) {
    linear_of_few(call, bias);
    return;
  }
#endif
  struct poet_tile t = {
      .a = {.lane = (int32_t)inputs, .column = 1},
      .b = {.lane = (int32_t)inputs, .column = 1},
      .columns = inputs,
      .rows = 1,
      .planes = 1,
      .begun = !call->first,
      .tame = poet_tame(x, op->n * inputs, weight, op->k * inputs)};
  poet_tile_shape(&t);
  if (POET_M0PLUS) {
    t.a.at = x, t.b.at = weight;
    poet_tile(&t, op->n, op->k, y, op->k);
    for (uint32_t n = op->n; n && bias != NULL; n--) {
      for (uint32_t k = 0; k < op->k; k++) {
        *y++ += bias[k];
      }
    }
    return;
  }
  for (uint32_t n = 0; n < op->n; n += POET_TILE) {
    const uint32_t samples = poet_lanes(op->n - n);
    t.a.at = x + n * inputs;
    for (uint32_t k = 0; k < op->k; k += POET_WIDE) {
      const uint32_t outputs = poet_wide_lanes(op->k - k, POET_WIDE);
      float sums[POET_TILE * POET_WIDE];
      t.b.at = weight + k * inputs;
      if (t.begun) {
        copy(y + n * op->k + k, op->k, samples, outputs, sums, POET_WIDE);
      }
      poet_tile(&t, samples, outputs, sums, POET_WIDE);
      for (uint32_t i = 0; i < samples; i++) {
        for (uint32_t j = 0; j < outputs; j++) {
          y[(n + i) * op->k + k + j] =
              bias != NULL ? sums[i * POET_WIDE + j] + bias[k + j]
                           : sums[i * POET_WIDE + j];
        }
      }
    }
  }
}

/* Set sums[j] to ((s + a[0] b[j]) + a[1] b[step + j]) + ..., for j < count. s
 * is sums[j] if `begun`, else 0. */
static void sum_rows(const float *a, const float *b, uint32_t step,
                     uint32_t terms, bool begun, float *sums, uint32_t count) {
#if POET_M4F
  if (count >= POET_STRIP) {
    const struct poet_strips strips = {.a = a,
                                       .b = b,
                                       .b_step = 4 * step,
                                       .terms = terms,
                                       .sums = sums,
                                       .count = count / POET_STRIP,
                                       .begun = begun};
    poet_strips(&strips);
    b += count - count % POET_STRIP;
    sums += count - count % POET_STRIP;
    count %= POET_STRIP;
  }
#endif
  uint32_t j = 0;
  for (; j + 2 <= count; j += 2) {
    const float *from = b + j;
    float s0 = begun ? sums[j] : 0.0f, s1 = begun ? sums[j + 1] : 0.0f;
    for (uint32_t i = 0; i < terms; i++) {
      s0 += a[i] * from[0], s1 += a[i] * from[1];
      from += step;
    }
    sums[j] = s0, sums[j + 1] = s1;
  }
  for (; j < count; j++) {
    const float *from = b + j;
    float sum = begun ? sums[j] : 0.0f;
    for (uint32_t i = 0; i < terms; i++) {
      sum += a[i] * *from;
      from += step;
    }
    sums[j] = sum;
  }
}

void poet_linear_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *dy = call->in[0];     /* (n, k) */
  const float *weight = call->in[1]; /* (k, inputs) */
  float *dx = call->out;             /* (n, inputs) */
  const uint32_t inputs = features(op);
#if POET_FEW
  if (inputs < POET_STRIP && (op->k == 2 || op->n * inputs * op->k <= SIMPLE)) {
    simple(dy, op->k, 1, op->n, weight, 1, inputs, inputs, op->k, !call->first,
           dx);
    return;
  }
  if ((inputs < POET_STRIP || op->k == 1) &&
      poet_is_few(op->n, inputs, op->k)) {
    const struct poet_few few = {
        .a = {.at = dy, .lane = op->k, .term = 1, .lanes = op->n},
        .b = {.at = weight, .lane = 1, .term = inputs, .lanes = inputs},
        .terms = op->k,
        .sums = dx,
        .a_next = inputs,
        .b_next = 1,
        .begun = !call->first};
    if (op->k == 1 && call->first) {
      poet_single(&few);
    } else {
      poet_few(&few);
    }
    return;
  }
#endif
  if (POET_IS_FEW(op->n) || (POET_M4F && POET_FEW && op->k <= FEW_TERMS)) {
    for (uint32_t n = 0; n < op->n; n++) {
      sum_rows(dy + n * op->k, weight, inputs, op->k, !call->first,
               dx + n * inputs, inputs);
    }
    return;
  }
  struct poet_tile t = {
      .a = {.lane = (int32_t)op->k, .column = 1},
      .b = {.lane = 1, .column = (int32_t)inputs},
      .columns = op->k,
      .rows = 1,
      .planes = 1,
      .begun = !call->first,
      .tame = poet_tame(dy, op->n * op->k, weight, op->k * inputs)};
  poet_tile_shape(&t);
  if (POET_M0PLUS) {
    t.a.at = dy, t.b.at = weight;
    poet_tile(&t, op->n, inputs, dx, inputs);
    return;
  }
  for (uint32_t n = 0; n < op->n; n += POET_TILE) {
    const uint32_t samples = poet_lanes(op->n - n);
    t.a.at = dy + n * op->k;
    const uint32_t full = samples == POET_TILE ? poet_full_lanes(inputs) : 0;
    t.b.at = weight;
    poet_tile(&t, samples, full, dx, inputs);
    for (uint32_t c = full; c < inputs; c += POET_WIDE) {
      const uint32_t count = poet_wide_lanes(inputs - c, POET_WIDE);
      float sums[POET_TILE * POET_WIDE];
      t.b.at = weight + c;
      if (t.begun) {
        copy(dx + c, inputs, samples, count, sums, POET_WIDE);
      }
      poet_tile(&t, samples, count, sums, POET_WIDE);
      copy(sums, POET_WIDE, samples, count, dx + c, inputs);
    }
    dx += POET_TILE * inputs;
  }
}

/* The gradients of row k from column c on, of fewer than POET_TILE samples. */
static void grad_weight_row(const struct poet_call *call, const float *x,
                            const float *dy, uint32_t k, uint32_t c) {
  const struct poet_op *op = call->op;
  const uint32_t inputs = features(op), row = poet_apart(call->row, op->k);
  float of_row[POET_TILE], sums[STRIP];
  for (uint32_t n = 0; n < op->n; n++) {
    of_row[n] = dy[n * row + k];
  }
  for (; c < inputs; c += STRIP) {
    const uint32_t count = inputs - c < STRIP ? inputs - c : STRIP;
    const struct poet_place place = {
        .first = k * inputs + c, .rows = 1, .columns = count, .column = 1};
    poet_begin_tile(call, &place, sums, 0);
    sum_rows(of_row, x + c, inputs, op->n, !call->first, sums, count);
    poet_sink_tile(call, 2, &place, sums, 0);
  }
}

static void grad_weight_of_few(const struct poet_call *call, const float *x,
                               const float *dy) {
  const struct poet_op *op = call->op;
  uint32_t rows = 0, columns = 0; /* of which the weights are up to date */
#if POET_M4F
  if (op->n == 1 && call->first && call->last && op->sink == POET_SINK_sgd &&
      op->weight_decay == 0.0f && op->k > 1 && features(op) >= POET_STRIP) {
    const struct poet_outer outer = {.w = call->out,
                                     .x = x,
                                     .g = dy,
                                     .row = 4 * features(op),
                                     .pairs = op->k / 2,
                                     .strips = features(op) / POET_STRIP,
                                     .rate = op->learning_rate};
    poet_outer(&outer);
    rows = 2 * outer.pairs;
    columns = POET_STRIP * outer.strips;
  }
#endif
  for (uint32_t k = 0; k < op->k; k++) {
    grad_weight_row(call, x, dy, k, k < rows ? columns : 0);
  }
}

#if POET_FEW
/* Return true if the sums are the gradients of this call alone, and stored. */
static bool is_stored(const struct poet_call *call) {
  return call->op->sink == POET_SINK_store && call->first && call->last;
}

/* Gradients of few products: in one call if stored, else some rows a call. */
static void grad_weight_of_few_products(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const uint32_t inputs = features(op);
  float sums[STRIP];
  const uint32_t rows = inputs > STRIP ? 1 : STRIP / inputs;
  struct poet_few f = {
      .a = {.at = call->in[1], .lane = 1, .term = poet_apart(call->row, op->k)},
      .b = {.at = call->in[0], .lane = 1, .term = inputs},
      .terms = op->n,
      .sums = sums,
      .b_next = 1,
      .begun = !call->first};
  if (is_stored(call)) {
    f.a.lanes = op->k, f.b.lanes = f.a_next = inputs, f.sums = call->out;
    poet_few(&f);
    return;
  }
  for (uint32_t k = 0; k < op->k; k += rows) {
    f.a.lanes = poet_wide_lanes(op->k - k, rows);
    f.b.at = call->in[0];
    for (uint32_t c = 0; c < inputs; c += STRIP) {
      f.b.lanes = f.a_next = poet_wide_lanes(inputs - c, STRIP);
      const uint32_t count = f.a.lanes * f.b.lanes;
      const struct poet_place place = {
          .first = k * inputs + c, .rows = 1, .columns = count, .column = 1};
      poet_begin_tile(call, &place, sums, 0);
      poet_few(&f);
      poet_sink_tile(call, 2, &place, sums, 0);
      f.b.at += STRIP;
    }
    f.a.at += rows;
  }
}
#endif

void poet_linear_grad_weight(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];  /* (n, inputs) */
  const float *dy = call->in[1]; /* (n, k) */
  const uint32_t inputs = features(op), row = poet_apart(call->row, op->k);
#if POET_FEW
  if (op->n >= POET_TILE || inputs < POET_STRIP) {
    if (op->k * inputs * op->n <= SIMPLE && is_stored(call)) {
      simple(dy, 1, row, op->k, x, 1, inputs, inputs, op->n, false, call->out);
      return;
    }
    if (poet_is_few(op->k, inputs, op->n)) {
      grad_weight_of_few_products(call);
      return;
    }
  }
#endif
  if (POET_IS_FEW(op->n)) {
    grad_weight_of_few(call, x, dy);
    return;
  }
  struct poet_tile t = {.a = {.lane = 1, .column = (int32_t)row},
                        .b = {.lane = 1, .column = (int32_t)inputs},
                        .columns = op->n,
                        .rows = 1,
                        .planes = 1,
                        .begun = !call->first};
  t.tame = poet_tame(x, op->n * inputs, dy, (op->n - 1) * row + op->k);
  poet_tile_shape(&t);
  for (uint32_t k = 0; k < op->k; k += DOWN) {
    const uint32_t outputs = poet_wide_lanes(op->k - k, DOWN);
    t.a.at = dy + k;
    for (uint32_t c = 0; c < inputs; c += ACROSS) {
      const uint32_t count = poet_wide_lanes(inputs - c, ACROSS);
      float sums[DOWN * ACROSS];
      t.b.at = x + c;
      const struct poet_place place = {.first = k * inputs + c,
                                       .rows = outputs,
                                       .columns = count,
                                       .row = inputs,
                                       .column = 1};
      poet_begin_tile(call, &place, sums, ACROSS);
      poet_tile(&t, outputs, count, sums, ACROSS);
      poet_sink_tile(call, 2, &place, sums, ACROSS);
    }
  }
}
