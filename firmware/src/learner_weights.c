/*
 * learner_weights.c - tensors that an application reads and writes, and what a
 * learner forgets.
 *
 * A tensor that is written goes to blocks of its own, after the samples. So a
 * power cut, or an error before poet_learner_adopt commits, loses nothing else.
 *
 * State: `staging`; while it is set, `staged`, `arriving`, `arrived` and
 * `is_partial`. All steps are committed then.
 */
#include <string.h>

#include "learning.h"

#if POET_LIBRARY

enum { CHUNK = 128 };

/* Return the units of a tensor that is staged, in blocks. */
static uint32_t blocks_of(const struct poet_tensor *tensor, uint32_t unit) {
  return tensor->place == POET_PLACE_CURRENT
             ? poet_divided_up(poet_divided_up(tensor->size_bytes, POET_BLOCK),
                               unit) *
                   unit
             : 0;
}

uint32_t learner_staging_blocks(const struct poet_package *package,
                                uint32_t unit) {
  struct poet_model model;
  uint32_t blocks = 0;
  memcpy(&model, package->training.model, sizeof model);
  for (uint32_t i = 0; i < model.stored_count; i++) {
    struct poet_tensor tensor;
    memcpy(&tensor, package->training.model + sizeof model + i * sizeof tensor,
           sizeof tensor);
    blocks += blocks_of(&tensor, unit);
  }
  return blocks;
}

/* A stored tensor, and the first block where it is staged. */
struct place {
  uint32_t number;
  struct poet_tensor tensor;
  uint32_t block;
};

/* Return the first block where tensors are staged. */
static uint32_t first_block(const struct learning *l) {
  const struct poet_package *package = l->package;
  return POET_OWN_BLOCK + poet_samples_blocks(package->classes, package->slots,
                                              learner_raw_bytes(package),
                                              learner_unit(l->device));
}

/* Find the tensor with a number of NAME_tensor_names. */
static POET_CHECKED int find(struct learning *l, uint32_t named,
                             struct place *place) {
  place->block = first_block(l);
  for (uint32_t i = 0; i < l->p.model.stored_count; i++) {
    TRY(poet_read_tensor(&l->p, i, &place->tensor));
    if (place->tensor.place != POET_PLACE_INPUT && !named--) {
      place->number = i;
      return 0;
    }
    place->block += blocks_of(&place->tensor, learner_unit(l->device));
  }
  return POET_ERROR_bad_object;
}

static bool is_within(const struct place *place, uint32_t offset,
                      uint32_t size) {
  return offset <= place->tensor.size_bytes &&
         size <= place->tensor.size_bytes - offset;
}

static POET_CHECKED int read(struct learning *l, uint32_t named,
                             uint32_t offset, void *to, uint32_t size) {
  struct place place;
  uint8_t *home = NULL;
  TRY(find(l, named, &place));
  if (!is_within(&place, offset, size)) {
    return POET_ERROR_bad_object;
  }
  TRY(learner_finish(l));
  if (!poet_in_ram(&l->p)) {
    return poet_read(&l->p, POET_OBJECT_TENSOR, (uint16_t)place.number, offset,
                     to, size);
  }
  if (l->p.live_step == POET_NO_STEP) {
    TRY(learner_restore(l));
  }
  TRY(poet_home(&l->p, place.number, &home));
  if (!home) {
    return POET_ERROR_package;
  }
  memcpy(to, home + offset, size);
  return 0;
}

int poet_learner_read(struct poet_learner *learner, uint32_t tensor,
                      uint32_t offset, void *to, uint32_t size) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, false));
  return learner_leave(l, true, read(l, tensor, offset, to, size));
}

static POET_CHECKED int begin_staging(struct learning *l) {
  TRY(learner_commit(l));
  memset(l->staged, 0, poet_divided_up(l->p.model.stored_count, 32) * 4);
  l->staging = true;
  l->arrived = 0;
  l->is_partial = false;
  return 0;
}

/* Write bytes of a block. On flash, a block that was written cannot be
 * continued. */
static POET_CHECKED int stage(struct learning *l, const struct place *place,
                              uint32_t offset, const uint8_t *from,
                              uint32_t size) {
  while (size) {
    const uint32_t block = place->block + offset / POET_BLOCK;
    const uint32_t at = offset % POET_BLOCK, room = POET_BLOCK - at;
    const uint32_t part = size < room ? size : room;
    if (at && l->p.unsettled != block && poet_is_flash(&l->p)) {
      return POET_ERROR_out_of_order;
    }
    TRY(poet_put_later(&l->p, block, at, from, part));
    offset += part;
    from += part;
    size -= part;
  }
  return offset < place->tensor.size_bytes ? 0 : poet_settle(&l->p);
}

/* Compare what the storage has with the bytes that were given. */
static POET_CHECKED int check_staged(struct learning *l,
                                     const struct place *place) {
  uint32_t crc = 0;
  poet_forget(&l->p, POET_OWN_BLOCK);
  TRY(poet_crc_stored(&l->p, place->block, 0, place->tensor.size_bytes, &crc));
  return crc == l->crc ? 0 : POET_ERROR_storage_failed;
}

static bool is_staged(const struct learning *l, uint32_t number) {
  return l->staged[number / 32] >> (number & 31) & 1;
}

/* Stage bytes of the tensor that arrives. An error loses it. */
static POET_CHECKED int put(struct learning *l, const struct place *place,
                            uint32_t offset, const void *from, uint32_t size) {
  if (!offset) {
    TRY(poet_settle(&l->p));
    TRY(poet_erase(&l->p, place->block,
                   blocks_of(&place->tensor, learner_unit(l->device))));
    l->staged[place->number / 32] &= ~(1u << (place->number & 31));
  }
  l->arrived = 0;
  l->crc = poet_crc(offset ? l->crc : 0, from, size);
  TRY(stage(l, place, offset, from, size));
  if (offset + size < place->tensor.size_bytes) {
    l->arrived = offset + size;
    return 0;
  }
  TRY(check_staged(l, place));
  l->staged[place->number / 32] |= 1u << (place->number & 31);
  l->is_partial = false;
  return 0;
}

static POET_CHECKED int write(struct learning *l, uint32_t named,
                              uint32_t offset, const void *from,
                              uint32_t size) {
  struct place place;
  if (!has_storage(l)) {
    return POET_ERROR_no_storage;
  }
  TRY(find(l, named, &place));
  if (place.tensor.place != POET_PLACE_CURRENT ||
      !is_within(&place, offset, size)) {
    return POET_ERROR_bad_object;
  }
  if (!size) {
    return 0;
  }
  const bool continues = l->staging && l->arriving == place.number;
  if (offset ? !continues || l->arrived != offset
             : l->staging && l->is_partial && !continues) {
    return POET_ERROR_out_of_order;
  }
  if (offset) {
    return put(l, &place, offset, from, size);
  }
  const bool begins = !l->staging;
  if (begins) {
    TRY(begin_staging(l));
  }
  const bool overwrites = l->is_partial || is_staged(l, place.number);
  l->arriving = place.number;
  l->is_partial = true;
  const int error = put(l, &place, offset, from, size);
  if (error) { /* of this tensor there is no more than before */
    l->is_partial = overwrites;
    l->staging = !begins;
  }
  return error;
}

int poet_learner_write(struct poet_learner *learner, uint32_t tensor,
                       uint32_t offset, const void *from, uint32_t size) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, false));
  return learner_leave(l, true, write(l, tensor, offset, from, size));
}

static POET_CHECKED int adopt_tensor(struct learning *l, uint32_t number,
                                     uint32_t block, uint32_t size_bytes) {
  uint32_t words[CHUNK / 4];
  for (uint32_t at = 0; at < size_bytes; at += CHUNK) {
    const uint32_t left = size_bytes - at, part = left < CHUNK ? left : CHUNK;
    TRY(poet_get(&l->p, block, at, words, part));
    TRY(poet_is_finite((const uint8_t *)words, part) ? 0
                                                     : POET_ERROR_not_finite);
    TRY(poet_write(&l->p, POET_OBJECT_TENSOR, (uint16_t)number, at, words,
                   part));
  }
  return 0;
}

static POET_CHECKED int adopt_all(struct learning *l) {
  uint32_t block = first_block(l);
  poet_forget(&l->p, POET_OWN_BLOCK); /* read what the storage has */
  for (uint32_t i = 0; i < l->p.model.stored_count; i++) {
    struct poet_tensor tensor;
    TRY(poet_read_tensor(&l->p, i, &tensor));
    if (is_staged(l, i)) {
      TRY(adopt_tensor(l, i, block, tensor.size_bytes));
    }
    block += blocks_of(&tensor, learner_unit(l->device));
  }
  return poet_begin(&l->p, learner_step(l));
}

/* Go back to the newest commit. One that failed may be on storage, so the same
 * weights are committed again. What fails now is tried again before
 * the next step or commit. Return 0 if it is newer than that of `generation`:
 * only its copy failed. */
static POET_CHECKED int undo(struct learning *l, int error,
                             uint32_t generation) {
  if (!error || !has_storage(l)) {
    return error;
  }
  l->must_renew = true;
  poet_ignore(learner_restore(l));
  poet_ignore(learner_renew(l));
  return l->p.committed.now.generation > generation ? 0 : error;
}

static POET_CHECKED int adopt(struct learning *l) {
  if (!l->staging) {
    return 0;
  }
  if (l->is_partial) {
    return POET_ERROR_out_of_order;
  }
  TRY(learner_renew(l));
  const uint32_t generation = l->p.committed.now.generation;
  TRY(undo(l, adopt_all(l), generation));
  l->staging = false;
  return 0;
}

int poet_learner_adopt(struct poet_learner *learner) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, false));
  return learner_leave(l, true, adopt(l));
}

/* A store whose first block is blank is laid out again. */
static POET_CHECKED int blank_storage(struct learning *l) {
  struct poet *p = &l->p;
  const uint32_t unit = l->device->erase_blocks;
  int error;
  if (!p->partition_blocks) { /* open did not find where the store lies */
    error = poet_mount(p);
    if (!p->partition_blocks && error != POET_ERROR_not_blank) {
      return error;
    }
  }
  if (unit && p->partition % unit) {
    return POET_ERROR_not_blank;
  }
  const uint32_t end = p->partition_blocks ? p->partition + p->partition_blocks
                                           : l->device->blocks;
  if (unit > end - p->partition) {
    return POET_ERROR_storage_small;
  }
  if (unit) {
    error = l->port.erase(l->port.context, p->partition, unit);
  } else {
    struct poet_cache *cache = p->memory.cache;
    poet_forget(p, 0);
    memset(cache->words, 0, sizeof cache->words);
    error = l->port.write(l->port.context, p->partition, cache->words, 1);
  }
  return error || poet_flush(&l->port) ? POET_ERROR_storage_failed : 0;
}

static POET_CHECKED int forget(struct learning *l, uint32_t what) {
  const bool weights = (what & POET_FORGET_WEIGHTS) != 0;
  const bool samples = (what & POET_FORGET_SAMPLES) != 0;
  if (l->opened != OPENED) {
    return weights && samples ? blank_storage(l) : POET_ERROR_closed;
  }
  TRY(learner_finish(l));
  if (has_storage(l) && (weights || samples)) {
    TRY(learner_commit(l));
  }
  /* From then on all is forgotten: at the next start, if the power goes before
   * the commit that follows. */
  const uint32_t epoch = l->samples.record.epoch;
  const uint32_t generation = l->p.committed.now.generation;
  const bool resets = weights || l->samples.record.reset == generation;
  TRY(poet_samples_mark(&l->samples, epoch + samples, resets ? generation : 0));
  int error = weights ? learner_begin(l, learner_step(l)) : 0;
  /* What a frozen tensor was is lost: only forget and open go on. */
  const bool is_lost = l->p.staging && l->p.staging_fixed;
  error = undo(l, error, generation);
  if (error && !is_lost) {
    poet_samples_unmark(&l->samples, epoch);
  }
  TRY(error);
  l->staging = false;
  if (samples) {
    poet_samples_forget(&l->samples);
  }
  return 0;
}

int poet_learner_forget(struct poet_learner *learner, uint32_t what) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, true));
  return learner_leave(l, true, forget(l, what));
}

#endif
