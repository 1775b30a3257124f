/*
 * dropout.c - dropout. Its mask is a function of (seed, step, key, index), so
 * the gradient and a recomputation get the same mask, and no mask is stored.
 * The same kernel is used in the forward pass and for the gradient.
 *
 * The random word of element i is MurmurHash3_x86_32 (Austin Appleby, public
 * domain) of the little-endian words step, key, i, with `seed` as its seed. The
 * uppermost 24 bits of this word, divided by 2^24, are the uniform number.
 */
#include "poet/kernel.h"

static uint32_t rotate_left(uint32_t word, uint32_t bits) {
  return word << bits | word >> (32 - bits);
}

static uint32_t absorb(uint32_t hash, uint32_t word) {
  hash ^= rotate_left(word * 0xcc9e2d51u, 15) * 0x1b873593u;
  return rotate_left(hash, 13) * 5 + 0xe6546b64u;
}

static uint32_t finish(uint32_t hash, uint32_t size_bytes) {
  hash ^= size_bytes;
  hash = (hash ^ hash >> 16) * 0x85ebca6bu;
  hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
  return hash ^ hash >> 16;
}

void poet_dropout(const struct poet_call *call) {
  const struct poet_op *op = call->op, *whole = call->whole;
  const float *x = call->in[0]; /* n * c * h * w elements */
  float *y = call->out;         /* the same */
  const float probability = op->probability;
  const float scale = 1.0f / (1.0f - probability);
  /* Compute the part of the hash that is the same for all elements. */
  const uint32_t stream = absorb(absorb(op->seed, call->step), op->key);

  for (uint32_t row = 0; row < op->n * op->c * op->h; row++) {
    const uint32_t n = row / (op->c * op->h), c = row / op->h % op->c;
    const uint32_t first =
        call->index + ((n * whole->c + c) * whole->h + row % op->h) * whole->w;
    for (uint32_t i = first; i < first + op->w; i++) {
      const uint32_t word = finish(absorb(stream, i), 12);
      const float uniform = (float)(word >> 8) * 0x1p-24f;
      *y++ = uniform >= probability ? *x * scale : 0.0f;
      x++;
    }
  }
}
