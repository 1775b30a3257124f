/*
 * batchnorm.c - batch normalisation as separate operators: statistics,
 * normalisation, running statistics, and gradients.
 *
 * `stats` (2, c) holds the means, then the biased variances. For a frozen
 * batchnorm, `stats` holds the running statistics. Each operator has one
 * output, so that a plan can recompute the normalisation without another update
 * of the running statistics.
 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "chain_m0plus.h"
#include "mathf.h"
#include "poet/kernel.h"
#include "sink.h"
#include "sums.h"

/* The statistics of one channel. */
struct channel {
  float mean, rstd;
};

static struct channel channel_of(const struct poet_op *op, const float *stats,
                                 uint32_t c) {
  return (struct channel){.mean = stats[c],
                          .rstd = 1.0f / sqrtf(stats[op->c + c] + op->epsilon)};
}

/* Return the number of elements of a channel of the operator. */
static float population(const struct poet_call *call) {
  return (float)(call->whole->n * call->whole->h * call->whole->w);
}

#if POET_M0PLUS
/* Return true if planes are so large that the set-up of a chain pays. */
static bool is_chain(const struct poet_op *op) {
  return op->h * op->w >= POET_CHAIN_LEAST;
}

/* Run the chain for channel c of all samples. */
static void run(const struct poet_op *op, struct poet_chain *chain,
                uint32_t c) {
  const uint32_t plane = op->h * op->w;
  for (uint32_t n = 0; n < op->n; n++) {
    poet_chain_run(chain, (n * op->c + c) * plane, plane);
  }
}
#endif

void poet_batchnorm_stats(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];   /* (n, c, h, w) */
  float *mean = call->out;        /* (c) */
  float *variance = mean + op->c; /* (c) */
  const float count = population(call);
#if POET_M0PLUS
  struct poet_chain chain;
  poet_chain_open(&chain, poet_elements(op));
#else
  const uint32_t plane = op->h * op->w, sample = op->c * plane;
#endif
  if (call->first) {
    memset(mean, 0, 2 * op->c * sizeof *mean);
  }
  for (uint32_t c = 0; c < op->c; c++) {
    if (call->pass == 0) {
#if POET_M0PLUS
      struct poet_step *sum = poet_chain_sum(&chain, x, mean[c]);
      run(op, &chain, c);
      mean[c] = poet_chain_saved(sum);
#else
      const float *from = x + c * plane;
      float sum = mean[c];
      for (uint32_t left = op->n; left; left--) {
        sum = poet_sum(sum, from, plane);
        from += sample;
      }
      mean[c] = sum;
#endif
      if (!call->last) {
        continue;
      }
    }
    const float center = mean[c] / count;
#if POET_M0PLUS
    struct poet_step *sum = poet_chain_squares(&chain, x, center, variance[c]);
    run(op, &chain, c);
    variance[c] = poet_chain_saved(sum);
#else
    const float *from = x + c * plane;
    float sum = variance[c];
    for (uint32_t left = op->n; left; left--) {
      sum = poet_squares(sum, from, plane, center);
      from += sample;
    }
    variance[c] = sum;
#endif
    if (call->last) {
      mean[c] = center;
      variance[c] /= count;
    }
  }
}

void poet_batchnorm(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *gamma = call->in[2]; /* (c) */
  const float *beta = call->in[3];  /* (c) */
  float *y = call->out;             /* (n, c, h, w) */
#if POET_M0PLUS
  struct poet_chain chain;
  poet_chain_open(&chain, poet_elements(op));
  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    poet_chain_xhat(&chain, x, channel.mean, channel.rstd);
    poet_chain_constant(&chain, POET_TIMES, gamma[c]);
    const bool zero = poet_bits(beta[c]) << 1 == 0;
    poet_chain_constant(&chain, zero ? POET_PLUS_ZERO : POET_PLUS, beta[c]);
    poet_chain_array(&chain, POET_PUT, y);
    run(op, &chain, c);
  }
#else
  const uint32_t plane = op->h * op->w;
  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    for (uint32_t n = 0; n < op->n; n++) {
      const uint32_t first = (n * op->c + c) * plane;
      for (uint32_t i = first; i < first + plane; i++) {
        const float xhat = (x[i] - channel.mean) * channel.rstd;
        y[i] = xhat * gamma[c] + beta[c];
      }
    }
  }
#endif
}

void poet_batchnorm_running(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *stats = call->in[0]; /* (2, c) */
  const float *old = call->in[1];   /* (2, c) */
  float *out = call->out;           /* (2, c) */
  const float count = population(call);
  const float unbiased = count > 1.0f ? count / (count - 1.0f) : 1.0f;

  for (uint32_t i = 0; i < 2 * op->c; i++) {
    const float recent = i < op->c ? stats[i] : stats[i] * unbiased;
    out[i] = (1.0f - op->update_rate) * old[i] + op->update_rate * recent;
  }
}

/* These two are functions of their own, so that the variables of one are not on
 * the stack with those of the other. */
#if POET_M0PLUS
__attribute__((noinline)) static void sum_chain(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *dy = call->in[2];    /* (n, c, h, w) */
  float *sums = call->out;          /* (2, c) */
  struct poet_chain chain;
  poet_chain_open(&chain, poet_elements(op));
  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    struct poet_step *sum =
        poet_chain_sum(&chain, dy, call->first ? 0.0f : sums[c]);
    run(op, &chain, c);
    sums[c] = poet_chain_saved(sum);
    poet_chain_xhat(&chain, x, channel.mean, channel.rstd);
    const float begin = call->first ? 0.0f : sums[op->c + c];
    sum = poet_chain_products(&chain, dy, begin);
    run(op, &chain, c);
    sums[op->c + c] = poet_chain_saved(sum);
  }
}
#endif

__attribute__((noinline)) static void sum_planes(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *dy = call->in[2];    /* (n, c, h, w) */
  float *sums = call->out;          /* (2, c) */
  const uint32_t plane = op->h * op->w, other_planes = (op->c - 1) * plane;
  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    float sum = 0.0f, product = 0.0f;
    if (!call->first) {
      sum = sums[c];
      product = sums[op->c + c];
    }
    const float *at = x, *slopes = dy;
    for (uint32_t n = op->n; n; n--) {
      for (const float *end = at + plane; at != end; at++) {
        const float slope = *slopes++;
        sum += slope;
        product += slope * ((*at - channel.mean) * channel.rstd);
      }
      at += other_planes;
      slopes += other_planes;
    }
    x += plane;
    dy += plane;
    sums[c] = sum;
    sums[op->c + c] = product;
  }
}

void poet_batchnorm_sums(const struct poet_call *call) {
#if POET_M0PLUS
  if (is_chain(call->op)) {
    sum_chain(call);
    return;
  }
#endif
  sum_planes(call);
}

void poet_batchnorm_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *gamma = call->in[2]; /* (c) */
  const float *dy = call->in[3];    /* (n, c, h, w) */
  const float *sums = call->in[4];  /* (2, c) */
  float *dx = call->out;            /* (n, c, h, w) */
  const float count = population(call);
#if POET_M0PLUS
  struct poet_chain chain;
  poet_chain_open(&chain, poet_elements(op));
#else
  const uint32_t plane = op->h * op->w, other_planes = (op->c - 1) * plane;
#endif

  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    const float scale = gamma[c] * channel.rstd;
    const float mean_dy = sums[c] / count;
    const float mean_product = sums[op->c + c] / count;
#if POET_M0PLUS
    poet_chain_xhat(&chain, x, channel.mean, channel.rstd);
    poet_chain_constant(&chain, POET_TIMES, -mean_product);
    poet_chain_constant(&chain, POET_KEEP, -mean_dy);
    poet_chain_array(&chain, POET_PLUS_ELEMENT, dy);
    poet_chain_array(&chain, POET_PLUS_KEPT, NULL);
    poet_chain_constant(&chain, POET_TIMES, scale);
    poet_chain_array(&chain, POET_PUT, dx);
    run(op, &chain, c);
#else
    const float *at = x, *slopes = dy;
    float *to = dx;
    uint32_t n = op->n;
    do {
      const float *end = at + plane;
      do {
        const float xhat = (*at++ - channel.mean) * channel.rstd;
        *to++ = scale * ((*slopes++ - mean_dy) - xhat * mean_product);
      } while (at != end);
      at += other_planes, slopes += other_planes, to += other_planes;
    } while (--n);
    x += plane, dy += plane, dx += plane;
#endif
  }
}

void poet_batchnorm_grad_input_frozen(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *stats = call->in[0]; /* (2, c) */
  const float *gamma = call->in[1]; /* (c) */
  const float *dy = call->in[2];    /* (n, c, h, w) */
  float *dx = call->out;            /* (n, c, h, w) */
  const uint32_t plane = op->h * op->w;
#if POET_M0PLUS
  struct poet_chain chain;
  poet_chain_open(&chain, poet_elements(op));
#endif

  for (uint32_t c = 0; c < op->c; c++) {
    const float scale = gamma[c] * channel_of(op, stats, c).rstd;
#if POET_M0PLUS
    if (is_chain(op)) {
      poet_chain_clear(&chain);
      poet_chain_array(&chain, POET_TAKE, dy);
      poet_chain_constant(&chain, POET_TIMES, scale);
      poet_chain_array(&chain, POET_PUT, dx);
      run(op, &chain, c);
      continue;
    }
#endif
    for (uint32_t n = 0; n < op->n; n++) {
      const uint32_t first = (n * op->c + c) * plane;
      for (uint32_t i = first; i < first + plane; i++) {
        dx[i] = dy[i] * scale;
      }
    }
  }
}

void poet_batchnorm_grad_param(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *sums = call->in[0]; /* (2, c) */

  poet_sink(call, 1, 0, op->variant == 0 ? sums : sums + op->c, op->c);
}
