/*
 * objects.c - the objects that a host reads and writes: the parts of a
 * schedule, tensors, a job. This file also contains poet_begin, whose commit
 * makes written tensors the weights of a step.
 *
 * State: `staging`, `verified` and, while staging, memory.bitmap: bit i is set
 * if CURRENT tensor i has been written since the last poet_begin. A step ends
 * staging, because the decoder of the step needs the bitmap.
 *
 * Why the last commit survives a power cut during an upload:
 * - A CURRENT tensor is written to its other slot, which is not the current
 *   one.
 * - poet_begin completes all other slots and checks their CRCs. Only then does
 *   it commit, which makes these slots the current ones.
 * - Another model may use the same blocks for other tensors. So before the
 *   first tensor of that model is written, a newer commit record without a step
 *   replaces the old commit. Then no tensor can be mistaken for a tensor of the
 *   old model.
 */
#include <string.h>

#include "runtime.h"

static_assert(POET_NOTE_OFFSET + 2 * POET_NOTE_BYTES ==
                  POET_MODEL_BLOCKS * POET_BLOCK,
              "the host's notes end the model area");

/* Where an object lies. */
struct place {
  uint32_t block; /* in the partition */
  uint32_t size_bytes;
  struct poet_tensor tensor; /* its record; size 0: not a tensor */
};

static uint32_t *staged_word(const struct poet *p, uint32_t tensor) {
  return &p->memory.bitmap[tensor / 32];
}

static bool is_staged(const struct poet *p, uint32_t tensor) {
  return p->staging && (*staged_word(p, tensor) >> (tensor & 31) & 1);
}

/* Find the place of an object on storage, for reading or for writing. */
static int locate(struct poet *p, uint8_t object, uint16_t number, bool write,
                  struct place *place) {
  place->tensor.size_bytes = 0;
  place->size_bytes = 0;
  TRY(poet_ready(p));
  if (object == POET_OBJECT_MODEL || object == POET_OBJECT_PLAN) {
    const bool model = object == POET_OBJECT_MODEL;
    place->block = model ? POET_MODEL_BLOCK : POET_PLAN_BLOCK;
    place->size_bytes =
        POET_BLOCK * (uint32_t)(model ? POET_MODEL_BLOCKS : POET_PLAN_BLOCKS);
    return 0;
  }
  if (!p->loaded) {
    return POET_ERROR_no_schedule;
  }
  if (object == POET_OBJECT_JOB) {
    const uint32_t most = UINT32_MAX / POET_BLOCK; /* offsets have 32 bits */
    place->block = poet_job_block(p->model.data_blocks);
    if (place->block < p->store.total_blocks) {
      const uint32_t left = p->store.total_blocks - place->block;
      place->size_bytes = (left < most ? left : most) * POET_BLOCK;
    }
    return 0;
  }
  if (object != POET_OBJECT_TENSOR || number >= p->model.stored_count) {
    return poet_fail(p, POET_ERROR_bad_object, number);
  }
  TRY(poet_read_tensor(p, number, &place->tensor));
  /* For an INPUT tensor, use the other slot if a step is running, because the
   * step reads the current slot. For a CURRENT tensor, use the other slot to
   * write, or to read bytes that were written since poet_begin. */
  const bool other = place->tensor.place == POET_PLACE_INPUT
                         ? p->status.running
                         : write || is_staged(p, number);
  if (place->tensor.place == POET_PLACE_NONE ||
      (place->tensor.place == POET_PLACE_CURRENT && !other &&
       !poet_committed(p))) {
    return poet_fail(p, POET_ERROR_bad_object, number);
  }
  const uint32_t parity = poet_parity(p);
  place->block = poet_slot(p, &place->tensor, other ? 1 - parity : parity);
  place->size_bytes = place->tensor.size_bytes;
  return 0;
}

static bool in_range(const struct place *place, uint32_t offset,
                     uint32_t size) {
  return offset <= place->size_bytes && size <= place->size_bytes - offset;
}

static uint32_t trailer_offset(uint32_t size_bytes) {
  return poet_tensor_blocks(size_bytes) * POET_BLOCK - POET_TRAILER;
}

/* Compare the CRC of the bytes in a slot with the slot's trailer. */
static int verify(struct poet *p, uint32_t block,
                  const struct poet_tensor *tensor, uint32_t number) {
  uint32_t trailer[2], crc;
  TRY(poet_crc_stored(p, block, 0, tensor->size_bytes, &crc));
  TRY(poet_get(p, block, trailer_offset(tensor->size_bytes), trailer,
               sizeof trailer));
  return trailer[0] == crc && trailer[1] == tensor->block
             ? 0
             : poet_fail(p, POET_ERROR_page_damaged, number);
}

/* Write the trailer of a slot. The data may have arrived in several requests,
 * so the CRC is computed from the bytes on storage. */
static int seal(struct poet *p, uint32_t block,
                const struct poet_tensor *tensor) {
  uint32_t trailer[2] = {0, tensor->block};
  TRY(poet_crc_stored(p, block, 0, tensor->size_bytes, &trailer[0]));
  return poet_put(p, block, trailer_offset(tensor->size_bytes), trailer,
                  sizeof trailer);
}

static void clear_bitmap(struct poet *p) {
  for (uint32_t i = 0; i < (p->memory.tensor_capacity + 31u) / 32; i++) {
    p->memory.bitmap[i] = 0;
  }
}

static int write_tensor(struct poet *p, const struct place *place,
                        uint16_t number, uint32_t offset, const void *from,
                        uint32_t size) {
  /* If the newest commit belongs to another model, replace it before slots of
   * that model are overwritten. */
  if (p->committed.step != POET_NO_STEP && !poet_committed(p)) {
    TRY(poet_commit(p, (struct poet_commit){.step = POET_NO_STEP}));
  }
  if (place->tensor.place == POET_PLACE_CURRENT) {
    if (!p->staging) {
      clear_bitmap(p);
      p->staging = true;
    }
    *staged_word(p, number) |= 1u << (number & 31);
  }
  p->verified = POET_NONE;
  TRY(poet_put(p, place->block, offset, from, size));
  return offset + size == place->size_bytes
             ? seal(p, place->block, &place->tensor)
             : 0;
}

/* Copy to or from the arena: either `to` or `from` is NULL. */
static int copy_arena(struct poet *p, uint32_t offset, void *to,
                      const void *from, uint32_t size) {
  uint8_t *at = poet_arena(p, offset, size);
  if (!at) {
    return poet_fail(p, POET_ERROR_bad_object, offset);
  }
  memcpy(to ? to : at, to ? at : from, size);
  return 0;
}

int poet_write(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
               const void *from, uint32_t size) {
  struct place place;
  if (p->status.running) {
    if (object != POET_OBJECT_TENSOR) {
      return POET_ERROR_busy;
    }
    /* Do not mount the storage now: that would unload the running schedule. */
    TRY(p->storage_status);
  }
  if (object == POET_OBJECT_ARENA) {
    return copy_arena(p, offset, NULL, from, size);
  }
  TRY(locate(p, object, tensor, true, &place));
  if (p->status.running && place.tensor.place != POET_PLACE_INPUT) {
    return POET_ERROR_busy;
  }
  if (!in_range(&place, offset, size)) {
    return poet_fail(p, POET_ERROR_bad_object, place.size_bytes);
  }
  if (place.tensor.size_bytes) {
    return write_tensor(p, &place, tensor, offset, from, size);
  }
  if (object != POET_OBJECT_JOB) {
    poet_reset(p);
  }
  return poet_put(p, place.block, offset, from, size);
}

int poet_read(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
              void *to, uint32_t size) {
  struct place place;
  if (object == POET_OBJECT_ARENA) {
    return copy_arena(p, offset, to, NULL, size);
  }
  TRY(locate(p, object, tensor, false, &place));
  if (!in_range(&place, offset, size)) {
    return poet_fail(p, POET_ERROR_bad_object, place.size_bytes);
  }
  if (place.tensor.size_bytes && p->verified != tensor) {
    TRY(verify(p, place.block, &place.tensor, tensor));
    p->verified = tensor;
  }
  return poet_get(p, place.block, offset, to, size);
}

int poet_checksum(struct poet *p, uint8_t object, uint16_t tensor,
                  uint32_t size, uint32_t *crc) {
  struct place place;
  TRY(locate(p, object, tensor, false, &place));
  if (!in_range(&place, 0, size)) {
    return poet_fail(p, POET_ERROR_bad_object, place.size_bytes);
  }
  return poet_crc_stored(p, place.block, 0, size, crc);
}

static bool anything_staged(const struct poet *p) {
  uint32_t any = 0;
  for (uint32_t i = 0; p->staging && i < p->model.stored_count; i += 32) {
    any |= *staged_word(p, i);
  }
  return any != 0;
}

static int copy(struct poet *p, uint32_t from, uint32_t to,
                const struct poet_tensor *tensor) {
  for (uint32_t i = 0; i < poet_tensor_blocks(tensor->size_bytes); i++) {
    TRY(poet_copy_block(p, from + i, to + i));
  }
  return 0;
}

/* Complete the other slots: for a tensor that was not written, copy its current
 * slot to its other slot. Then check the CRCs of the CURRENT tensors in these
 * slots. */
static int complete_other_slots(struct poet *p) {
  const uint32_t parity = poet_parity(p);
  for (uint32_t i = 0; i < p->model.stored_count; i++) {
    struct poet_tensor tensor;
    TRY(poet_read_tensor(p, i, &tensor));
    const bool input = tensor.place == POET_PLACE_INPUT;
    if (tensor.place != POET_PLACE_CURRENT && !input) {
      continue;
    }
    const uint32_t other = poet_slot(p, &tensor, 1 - parity);
    if (!is_staged(p, i)) {
      if (!poet_committed(p) && !input) {
        return poet_fail(p, POET_ERROR_bad_object, i);
      }
      TRY(copy(p, poet_slot(p, &tensor, parity), other, &tensor));
    }
    if (!input) {
      TRY(verify(p, other, &tensor, i));
    }
  }
  return 0;
}

int poet_begin(struct poet *p, uint32_t step) {
  struct poet_commit commit = {.step = step};
  TRY(poet_ready(p));
  if (!p->loaded) {
    return POET_ERROR_no_schedule;
  }
  if (step == POET_NO_STEP) {
    return poet_fail(p, POET_ERROR_wrong_step, step);
  }
  commit.model_crc = p->model.crc;
  commit.data_blocks = p->model.data_blocks;
  commit.parity = poet_parity(p);
  if (anything_staged(p) || !poet_committed(p)) {
    TRY(complete_other_slots(p));
    commit.parity = 1 - commit.parity;
  } else if (step == p->committed.step) {
    return 0;
  }
  /* Delete the job before the commit: the job belongs to the old weights, and a
   * restart after the commit must not continue it. If the card has no space for
   * a job, this write is refused, which does no harm. */
  const uint32_t none = 0;
  (void)poet_write(p, POET_OBJECT_JOB, 0, 0, &none, sizeof none);
  TRY(p->storage_status);
  TRY(poet_commit(p, commit));
  p->staging = false;
  p->verified = POET_NONE;
  p->result = (struct poet_step_result){.step = step};
  return 0;
}
