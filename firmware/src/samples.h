/*
 * samples.h - samples that a device keeps: of each class the newest ones, raw.
 */
#ifndef POET_SAMPLES_H
#define POET_SAMPLES_H

#include "runtime.h"

/* Set all fields down to `next`, and then call poet_samples_open. Place `i` of
 * class `c` has the number c * places + i. */
struct poet_samples {
  struct poet *p; /* whose storage the samples lie on; NULL: they are in RAM */
  uint8_t *ram;   /* classes * slots samples; NULL: they lie on storage */
  uint32_t sample_bytes;
  bool is_unsigned; /* values are uint8, not int8 */
  uint16_t classes;
  uint16_t slots;        /* samples of a class that a step can draw */
  uint32_t erase_blocks; /* blocks of an erase unit; 1: no erase is needed */
  /* of each place, the first step that may draw its sample; 0: it is empty */
  uint32_t *from;
  uint32_t *next; /* of each class, the number of its next sample */

  uint16_t
      places; /* of a class: one more than `slots`, if they lie on storage */
  uint32_t place_blocks;
  uint32_t start; /* where the CRCs of this store begin */
  struct poet_samples_record record;
  /* what an access that failed may have written, and must not be found later;
   * 0: nothing */
  uint32_t unsure_block;
};

/* A sample that is read in order, and its CRC so far. */
struct poet_sample_reader {
  uint32_t place;
  uint32_t number; /* of the sample in its class */
  uint32_t offset;
  uint32_t crc;
  uint32_t expected;
};

/* Return the places of a class, and the blocks of all samples. */
uint32_t poet_samples_places(uint32_t slots, bool on_storage);
uint32_t poet_samples_blocks(uint32_t classes, uint32_t slots,
                             uint32_t sample_bytes, uint32_t erase_blocks);
/* Find the samples on storage. If the storage has none for this number of
 * classes and slots, or if it `is_new`, all places are empty. */
POET_CHECKED int poet_samples_open(struct poet_samples *s, bool is_new);
/* Replace on storage what an access that failed may have written. While that
 * fails, nothing else may be acknowledged. */
POET_CHECKED int poet_samples_settle(struct poet_samples *s);
/* Let the samples of another epoch be those on storage, from the next start on.
 * `reset` is kept in the record. */
POET_CHECKED int poet_samples_mark(struct poet_samples *s, uint32_t epoch,
                                   uint32_t reset);
/* Take this back: `epoch` is the one before. Until poet_samples_settle returns
 * 0, the storage may have the other record. */
void poet_samples_unmark(struct poet_samples *s, uint32_t epoch);
/* Forget all samples. On storage, poet_samples_mark comes first. */
void poet_samples_forget(struct poet_samples *s);
/* Keep a sample that step `from` and later ones may draw. `first` is the first
 * step that may still be run. POET_BUSY: such a step may draw the sample that
 * would be replaced. */
POET_CHECKED int poet_samples_add(struct poet_samples *s, uint32_t label,
                                  uint32_t from, uint32_t first,
                                  const void *sample);
/* Return how many samples of a class step `step` chooses from. */
uint32_t poet_samples_count(const struct poet_samples *s, uint32_t label,
                            uint32_t step);
/* Choose sample `i` of the batch of a step. Return false if there is none. */
bool poet_samples_draw(const struct poet_samples *s, uint32_t seed,
                       uint32_t step, uint32_t batch, uint32_t i,
                       uint32_t *label, struct poet_sample_reader *reader);
/* Return how many of the next bytes of a sample lie in one block. */
uint32_t poet_samples_room(const struct poet_samples *s,
                           const struct poet_sample_reader *reader);
/* Read the next bytes of a sample. page_damaged: they were the last ones, and
 * the sample is not the one that was written; it is not drawn again. */
POET_CHECKED int poet_samples_read(struct poet_samples *s,
                                   struct poet_sample_reader *reader, void *to,
                                   uint32_t size);

#endif
