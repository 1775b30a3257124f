/* batchnorm.c - batch normalisation as separate operators: statistics,
 * normalising, running statistics, and the gradients. Frozen batchnorm passes
 * the running statistics as `stats`. */
#include <math.h>

#include "poet/kernel.h"
#include "sink.h"

/* What one channel of `stats` says. */
struct channel {
  float mean, rstd;
};

static struct channel channel_of(const struct poet_op *op, const float *stats,
                                 uint32_t c) {
  return (struct channel){.mean = stats[c],
                          .rstd = 1.0f / sqrtf(stats[op->c + c] + op->epsilon)};
}

/* Elements that a channel's statistics are of. */
static float population(const struct poet_op *op) {
  return (float)(op->n * op->h * op->w);
}

void poet_batchnorm_stats(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  float *mean = call->out;
  float *variance = mean + op->c;
  const uint32_t plane = op->h * op->w;
  const float count = population(op);

  for (uint32_t c = 0; c < op->c; c++) {
    float sum = 0.0f;
    for (uint32_t n = 0; n < op->n; n++) {
      const float *from = x + (n * op->c + c) * plane;
      for (uint32_t i = 0; i < plane; i++) {
        sum += from[i];
      }
    }
    mean[c] = sum / count;

    sum = 0.0f;
    for (uint32_t n = 0; n < op->n; n++) {
      const float *from = x + (n * op->c + c) * plane;
      for (uint32_t i = 0; i < plane; i++) {
        const float distance = from[i] - mean[c];
        sum += distance * distance;
      }
    }
    variance[c] = sum / count;
  }
}

void poet_batchnorm(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  const float *stats = call->in[1];
  const float *gamma = call->in[2];
  const float *beta = call->in[3];
  float *y = call->out;
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

void poet_batchnorm_running(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *stats = call->in[0];
  const float *old = call->in[1];
  float *out = call->out;
  const float count = population(op);
  const float unbiased = count > 1.0f ? count / (count - 1.0f) : 1.0f;

  for (uint32_t i = 0; i < 2 * op->c; i++) {
    const float recent = i < op->c ? stats[i] : stats[i] * unbiased;
    out[i] = (1.0f - op->momentum) * old[i] + op->momentum * recent;
  }
}

void poet_batchnorm_sums(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  const float *stats = call->in[1];
  const float *dy = call->in[2];
  float *sums = call->out;
  const uint32_t plane = op->h * op->w;

  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    float sum = 0.0f, product = 0.0f;
    for (uint32_t n = 0; n < op->n; n++) {
      const uint32_t first = (n * op->c + c) * plane;
      for (uint32_t i = first; i < first + plane; i++) {
        sum += dy[i];
        product += dy[i] * ((x[i] - channel.mean) * channel.rstd);
      }
    }
    sums[c] = sum;
    sums[op->c + c] = product;
  }
}

void poet_batchnorm_grad_input(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *x = call->in[0];
  const float *stats = call->in[1];
  const float *gamma = call->in[2];
  const float *dy = call->in[3];
  const float *sums = call->in[4];
  float *dx = call->out;
  const uint32_t plane = op->h * op->w;
  const float count = population(op);

  for (uint32_t c = 0; c < op->c; c++) {
    const struct channel channel = channel_of(op, stats, c);
    const float scale = gamma[c] * channel.rstd;
    const float mean_dy = sums[c] / count;
    const float mean_product = sums[op->c + c] / count;
    for (uint32_t n = 0; n < op->n; n++) {
      const uint32_t first = (n * op->c + c) * plane;
      for (uint32_t i = first; i < first + plane; i++) {
        const float xhat = (x[i] - channel.mean) * channel.rstd;
        dx[i] = scale * ((dy[i] - mean_dy) - xhat * mean_product);
      }
    }
  }
}

void poet_batchnorm_grad_input_frozen(const struct poet_call *call) {
  const struct poet_op *op = call->op;
  const float *stats = call->in[0];
  const float *gamma = call->in[1];
  const float *dy = call->in[2];
  float *dx = call->out;
  const uint32_t plane = op->h * op->w;

  for (uint32_t c = 0; c < op->c; c++) {
    const float scale = gamma[c] * channel_of(op, stats, c).rstd;
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
  const float *sums = call->in[0];

  poet_sink(call, 1, 0, op->variant == 0 ? sums : sums + op->c, op->c);
}
