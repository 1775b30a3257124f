/*
 * package.h - what a learner (learner.h) is made of: a model with its schedules
 * and starting weights, and the memory that it needs.
 */
#ifndef POET_PACKAGE_H
#define POET_PACKAGE_H

#include "program.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POET_PACKAGE_MAGIC 0x314b4350u /* "PCK1" */

/* Types of the values of raw samples. */
enum poet_raw {
  POET_RAW_float32,
  POET_RAW_int16,
  POET_RAW_int8,
  POET_RAW_uint8
};

struct poet_package {
  uint32_t magic;
  struct poet_program training, forward;
  /* Of each stored tensor of the training schedule, its first value; NULL: all
   * its bytes are 0, or it is an input. */
  const uint8_t *const *values;
  uint32_t values_crc; /* CRC-32 of all these values, one after another */
  /* A raw value stands for the number x = (raw - raw_offset) * raw_scale, and
   * is normalised as (x - offset[c]) / scale[c]; each result is rounded. Value
   * i of a sample has channel c = i / (sample_values / channels). */
  float raw_scale, raw_offset;
  const float *scale, *offset;
  uint32_t channels;
  uint32_t sample_values;
  uint32_t outputs; /* floats */
  uint32_t batch;
  uint32_t seed;          /* of the choice of samples */
  uint16_t data, label;   /* input tensors */
  uint16_t classes;       /* at least 1 */
  uint16_t slots;         /* samples of a class */
  uint8_t raw;            /* enum poet_raw */
  bool repeats_the_input; /* an autoencoder: the label is the sample */
};

/* The bytes of memory that a learner needs: for a schedule with `arena_bytes`,
 * `residents`, `transfers` and `tensors` (each the greatest number of both
 * schedules, and at least 1), for `cached` blocks of storage (1 if the weights
 * stay in RAM, else 2), and places for samples, of which each needs
 * `place_bytes` of memory (0: samples lie on storage). */
#define POET_MEMORY_ROUNDED(bytes) (((bytes) + UINT32_C(7)) & ~UINT32_C(7))
#define POET_TWO_POINTERS (sizeof(void *) > 4 ? 16u : 8u)
#define POET_MEMORY_BYTES(arena_bytes, residents, transfers, cached, tensors,  \
                          classes, places, place_bytes)                        \
  (POET_MEMORY_ROUNDED(arena_bytes) +                                          \
   (transfers) * (48u + POET_TWO_POINTERS) +                                   \
   (cached) * (520u + POET_TWO_POINTERS) +                                     \
   POET_MEMORY_ROUNDED((residents) * 12u) +                                    \
   2u * POET_MEMORY_ROUNDED(((tensors) + 31u) / 32u * 4u) +                    \
   POET_MEMORY_ROUNDED((classes) * ((places) + 1u) * 4u) +                     \
   POET_MEMORY_ROUNDED((classes) * (places) * (place_bytes)))

#ifdef __cplusplus
}
#endif

#endif
