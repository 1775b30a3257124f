/* loss.c - softmax cross-entropy, also with a weight of each class, mean
 * squared error, and their gradients. The largest logit is subtracted first, so
 * that exp cannot overflow. */
#include <math.h>
#include <stddef.h>

#include "mathf.h"
#include "poet/kernel.h"

static float largest(const float *x, uint32_t count) {
  float best = x[0];
  for (uint32_t i = 1; i < count; i++) {
    best = x[i] > best ? x[i] : best;
  }
  return best;
}

/* Return the sum of exp(x - top). Store the terms too if `to` is not NULL. */
static float powers(const float *x, uint32_t count, float top, float *to) {
  float sum = 0.0f;
  for (uint32_t i = 0; i < count; i++) {
    const float power = poet_exp(x[i] - top);
    if (to) {
      to[i] = power;
    }
    sum += power;
  }
  return sum;
}

void poet_softmax_xent(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];        /* (n, c) */
  const int32_t *labels = call->in[1]; /* (n) */
  float *loss = call->out;             /* one float */
  float total = call->first ? 0.0f : *loss;

  for (uint32_t n = 0; n < op->n; n++) {
    const uint32_t label = (uint32_t)labels[n];
    const float top = largest(x, op->c);
    const float sum = powers(x, op->c, top, NULL);
    total += label < op->c ? poet_log(sum) - (x[label] - top) : NAN;
    x += op->c;
  }
  *loss = call->last ? total / (float)call->whole->n : total;
}

void poet_softmax_xent_grad(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];        /* (n, c) */
  const int32_t *labels = call->in[1]; /* (n) */
  float *dx = call->out;               /* (n, c) */
  const float samples = (float)call->whole->n;

  for (uint32_t n = 0; n < op->n; n++) {
    const uint32_t label = (uint32_t)labels[n];
    const float top = largest(x, op->c);
    const float sum = powers(x, op->c, top, dx);
    for (uint32_t c = 0; c < op->c; c++) {
      dx[c] = (dx[c] / sum - (c == label ? 1.0f : 0.0f)) / samples;
    }
    x += op->c;
    dx += op->c;
  }
}

/* Return what the label expects of class `c`. A label without its class, which
 * is ignored, expects nothing. */
static float expected(const struct poet_call *call, uint32_t label,
                      uint32_t c) {
  const struct poet_op *op = call->op;
  const float *weights = call->in[2]; /* (c) */
  return weights[c] * (label >= op->c ? 0.0f
                       : label == c   ? op->upper_bound
                                      : op->lower_bound);
}

/* Compute sample `n`: the gradient of its logits, or, without `dx`, its loss.
 */
static float weighted_sample(const struct poet_call *call, uint32_t n,
                             float *dx) {
  const struct poet_op *op = call->op;
  const float *x = (const float *)call->in[0] + n * op->c; /* (c) */
  const uint32_t label = ((const uint32_t *)call->in[1])[n];
  const float top = largest(x, op->c);
  const float sum = powers(x, op->c, top, dx);
  float all = 0.0f, loss = 0.0f;
  for (uint32_t c = 0; c < op->c; c++) {
    all += expected(call, label, c);
  }
  const float whole = poet_log(sum);
  for (uint32_t c = 0; c < op->c; c++) {
    const float t = expected(call, label, c);
    if (dx) {
      dx[c] = dx[c] / sum * all - t;
    } else {
      loss += t * (whole - (x[c] - top));
    }
  }
  return loss;
}

void poet_weighted_xent(const struct poet_call *call) {
  float *loss = call->out; /* one float */
  float total = call->first ? 0.0f : *loss;
  for (uint32_t n = 0; n < call->op->n; n++) {
    total += weighted_sample(call, n, NULL);
  }
  *loss = total;
}

void poet_weighted_xent_grad(const struct poet_call *call) {
  float *dx = call->out; /* (n, c) */
  for (uint32_t n = 0; n < call->op->n; n++) {
    weighted_sample(call, n, dx + n * call->op->c);
  }
}

void poet_mse(const struct poet_call *call) {
  const float *x = call->in[0];      /* n * c * h * w elements */
  const float *target = call->in[1]; /* the same */
  float *loss = call->out;           /* one float */
  const uint32_t count = poet_elements(call->op);
  float sum = call->first ? 0.0f : *loss;

  for (uint32_t i = 0; i < count; i++) {
    const float distance = x[i] - target[i];
    sum += distance * distance;
  }
  *loss = call->last ? sum / (float)poet_elements(call->whole) : sum;
}

void poet_mse_grad(const struct poet_call *call) {
  const float *x = call->in[0];      /* n * c * h * w elements */
  const float *target = call->in[1]; /* the same */
  float *dx = call->out;             /* the same */
  const uint32_t count = poet_elements(call->op);
  const float scale = 2.0f / (float)poet_elements(call->whole);

  for (uint32_t i = 0; i < count; i++) {
    dx[i] = (x[i] - target[i]) * scale;
  }
}
