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

#include "m0plus/chain_m0plus.h"
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
/* Functions of their own, so that the variables of a chain are not on the stack
 * with those of the loops without one. */
#define APART __attribute__((noinline)) static

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
#else
#define APART static
#endif

#if POET_M0PLUS
APART void stats_by_chain(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];   /* (n, c, h, w) */
  float *mean = call->out;        /* (c) */
  float *variance = mean + op->c; /* (c) */
  const float count = population(call);
  struct poet_chain chain;
  poet_chain_open(&chain, poet_elements(op));
  for (uint32_t c = 0; c < op->c; c++) {
    struct poet_step *sum;
    if (call->first) {
      mean[c] = variance[c] = 0.0f;
    }
    if (call->pass == 0) {
      sum = poet_chain_sum(&chain, x, mean[c]);
      run(op, &chain, c);
      mean[c] = poet_chain_saved(sum);
      if (!call->last) {
        continue;
      }
    }
    const float center = mean[c] / count;
    sum = poet_chain_squares(&chain, x, center, variance[c]);
    run(op, &chain, c);
    variance[c] = poet_chain_saved(sum);
    if (call->last) {
      mean[c] = center;
      variance[c] /= count;
    }
  }
}
#endif

/* Return `sum` and all elements of a channel, which begins at x. */
static inline float sum_channel(const struct poet_op *op, const float *x,
                                float sum) {
  const uint32_t plane = op->h * op->w, sample = op->c * plane;
  uint32_t left = op->n;
  if (POET_UNROLL && plane <= POET_SINGLE) { /* tested once, not for each n */
    do {
      sum = poet_sum(sum, x, plane);
      x += sample;
    } while (--left);
    return sum;
  }
  do {
    sum = poet_sum(sum, x, plane);
    x += sample;
  } while (--left);
  return sum;
}

/* The same for the squares of their distances from `mean`. */
static inline float square_channel(const struct poet_op *op, const float *x,
                                   float mean, float sum) {
  const uint32_t plane = op->h * op->w, sample = op->c * plane;
  uint32_t left = op->n;
  if (POET_UNROLL && plane <= POET_SINGLE) {
    do {
      sum = poet_squares(sum, x, plane, mean);
      x += sample;
    } while (--left);
    return sum;
  }
  do {
    sum = poet_squares(sum, x, plane, mean);
    x += sample;
  } while (--left);
  return sum;
}

APART void stats_of_planes(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];   /* (n, c, h, w) */
  float *mean = call->out;        /* (c) */
  float *variance = mean + op->c; /* (c) */
  const float count = population(call);
  for (uint32_t c = 0; c < op->c; c++, x += op->h * op->w) {
    if (call->first) {
      mean[c] = variance[c] = 0.0f;
    }
    if (call->pass == 0) {
      mean[c] = sum_channel(op, x, mean[c]);
      if (!call->last) {
        continue;
      }
    }
    const float center = mean[c] / count;
    variance[c] = square_channel(op, x, center, variance[c]);
    if (call->last) {
      mean[c] = center;
      variance[c] /= count;
    }
  }
}

void poet_batchnorm_stats(const struct poet_call *call) {
#if POET_M0PLUS
  if (is_chain(call->op)) {
    stats_by_chain(call);
    return;
  }
#endif
  stats_of_planes(call);
}

#if POET_M0PLUS
APART void normalise_by_chain(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *gamma = call->in[2]; /* (c) */
  const float *beta = call->in[3];  /* (c) */
  float *y = call->out;             /* (n, c, h, w) */
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
}
#endif

APART void normalise_planes(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *gamma = call->in[2]; /* (c) */
  const float *beta = call->in[3];  /* (c) */
  float *y = call->out;             /* (n, c, h, w) */
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
}

void poet_batchnorm(const struct poet_call *call) {
#if POET_M0PLUS
  if (is_chain(call->op)) {
    normalise_by_chain(call);
    return;
  }
#endif
  normalise_planes(call);
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

#if POET_M0PLUS
APART void sum_chain(const struct poet_call *call) {
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

APART void sum_planes(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *dy = call->in[2];    /* (n, c, h, w) */
  float *sums = call->out;          /* (2, c) */
  const uint32_t plane = op->h * op->w, other_planes = (op->c - 1) * plane;
  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    float sum = call->first ? 0.0f : sums[c];
    float product = call->first ? 0.0f : sums[op->c + c];
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

#if POET_M0PLUS
APART void slope_by_chain(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *gamma = call->in[2]; /* (c) */
  const float *dy = call->in[3];    /* (n, c, h, w) */
  const float *sums = call->in[4];  /* (2, c) */
  float *dx = call->out;            /* (n, c, h, w) */
  const float count = population(call);
  struct poet_chain chain;
  poet_chain_open(&chain, poet_elements(op));
  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    const float scale = gamma[c] * channel.rstd;
    const float mean_dy = sums[c] / count;
    const float mean_product = sums[op->c + c] / count;
    poet_chain_xhat(&chain, x, channel.mean, channel.rstd);
    poet_chain_constant(&chain, POET_TIMES, -mean_product);
    poet_chain_constant(&chain, POET_KEEP, -mean_dy);
    poet_chain_array(&chain, POET_PLUS_ELEMENT, dy);
    poet_chain_array(&chain, POET_PLUS_KEPT, NULL);
    poet_chain_constant(&chain, POET_TIMES, scale);
    poet_chain_array(&chain, POET_PUT, dx);
    run(op, &chain, c);
  }
}
#endif

APART void slope_planes(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];     /* (n, c, h, w) */
  const float *stats = call->in[1]; /* (2, c) */
  const float *gamma = call->in[2]; /* (c) */
  const float *dy = call->in[3];    /* (n, c, h, w) */
  const float *sums = call->in[4];  /* (2, c) */
  float *dx = call->out;            /* (n, c, h, w) */
  const float count = population(call);
  const uint32_t plane = op->h * op->w, other_planes = (op->c - 1) * plane;
  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    const float scale = gamma[c] * channel.rstd;
    const float mean_dy = sums[c] / count;
    const float mean_product = sums[op->c + c] / count;
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
  }
}

void poet_batchnorm_grad_input(const struct poet_call *call) {
#if POET_M0PLUS
  if (is_chain(call->op)) {
    slope_by_chain(call);
    return;
  }
#endif
  slope_planes(call);
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
