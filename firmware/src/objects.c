/*
 * objects.c - the objects that a host reads and writes: the parts of a
 * schedule, tensors, a job. This file also contains poet_begin, whose commit
 * makes written tensors the weights of a step.
 *
 * State: `staging`, `verified` and, while staging, memory.bitmap: bit i is set
 * if CURRENT or FIXED tensor i has been written since the last poet_begin. A
 * step ends staging, because the decoder of the step needs the bitmap.
 * `staging_fixed`, while staging: a FIXED tensor has been written.
 *
 * Why the last commit survives a power cut during an upload:
 * - A CURRENT tensor is written to its next slot.
 * - poet_begin completes all next slots and checks their CRCs. Only then does
 *   it commit, which makes these slots the current ones.
 * - Another model may use the same blocks for other tensors. So before the
 *   first tensor of that model is written, a newer commit record without a step
 *   replaces the old commit. Then no tensor can be mistaken for a tensor of the
 *   old model.
 * - A FIXED tensor has one slot. Once one is overwritten, the last commit fails
 *   as damaged, because its trailers are for the next commit.
 */
#include <string.h>

#include "plan.h"

static_assert(POET_NOTE_OFFSET + 2 * POET_NOTE_BYTES ==
                  POET_MODEL_BLOCKS * POET_BLOCK,
              "the host's notes end the model area");

static uint32_t *staged_word(const struct poet *p, uint32_t tensor) {
  return &p->memory.bitmap[tensor / 32];
}

static bool is_staged(const struct poet *p, uint32_t tensor) {
  return p->staging && (*staged_word(p, tensor) >> (tensor & 31) & 1);
}

/* Find the place of an object on storage, for reading or for writing. */
static POET_CHECKED int locate(struct poet *p, uint8_t object, uint16_t number,
                               bool write, struct poet_object *place) {
  place->tensor.size_bytes = 0;
  place->size_bytes = 0;
  place->ram = NULL;
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
  if (poet_in_ram(p) && (place->tensor.place == POET_PLACE_INPUT || write ||
                         is_staged(p, number))) {
    place->size_bytes = place->tensor.size_bytes;
    return poet_home(p, number, &place->ram);
  }
  /* For an INPUT tensor, use the next slot if a step is running, because the
   * step reads the current slot. For others, use the next slot or the next
   * trailers to write, or to read bytes that were written since poet_begin. */
  place->next = place->tensor.place == POET_PLACE_INPUT
                    ? p->status.running
                    : write || is_staged(p, number);
  if (place->tensor.place == POET_PLACE_NONE ||
      (place->tensor.place == POET_PLACE_CURRENT && !place->next &&
       !poet_committed(p))) {
    return poet_fail(p, POET_ERROR_bad_object, number);
  }
  place->block = poet_slot(p, &place->tensor, place->next);
  place->size_bytes = place->tensor.size_bytes;
  return 0;
}

static bool in_range(const struct poet_object *place, uint32_t offset,
                     uint32_t size) {
  return offset <= place->size_bytes && size <= place->size_bytes - offset;
}

static void clear_bitmap(struct poet *p) {
  for (uint32_t i = 0; i < (p->memory.tensor_capacity + 31u) / 32; i++) {
    p->memory.bitmap[i] = 0;
  }
}

/* Replace the newest commit, if it belongs to another model, before slots of
 * that model are overwritten. Not inlined, so that the record is not on the
 * stack while the tensor is written. */
__attribute__((noinline)) static POET_CHECKED int
replace_commit(struct poet *p) {
  return p->committed.now.step == POET_NO_STEP || poet_committed(p)
             ? 0
             : poet_commit(p, &(struct poet_commit){.now.step = POET_NO_STEP});
}

static POET_CHECKED int write_tensor(struct poet *p,
                                     const struct poet_object *place,
                                     uint16_t number, uint32_t offset,
                                     const void *from, uint32_t size) {
  TRY(replace_commit(p));
  if (place->tensor.place != POET_PLACE_INPUT) {
    if (!p->staging) {
      TRY(poet_renumber(p));
      poet_forget_rows(p);
      clear_bitmap(p);
      p->staging = true;
      p->staging_fixed = false;
    }
    p->staging_fixed |= place->tensor.place == POET_PLACE_FIXED;
    *staged_word(p, number) |= 1u << (number & 31);
  }
  p->verified = POET_NONE;
  TRY(poet_write_pieces(p, place, number, offset, from, size));
  if (offset + size < place->size_bytes) {
    return 0;
  }
  /* poet_begin checks the bytes of CURRENT tensors, and a step those of INPUT
   * tensors. Another FIXED tensor of this model could pass for this one. */
  TRY(poet_check_arrival(p, place, number));
  return place->tensor.place == POET_PLACE_FIXED
             ? poet_verify(p, number, &place->tensor, place->next)
             : 0;
}

/* Write bytes of a tensor to its home. The last byte completes the tensor. */
static POET_CHECKED int write_home(struct poet *p,
                                   const struct poet_object *place,
                                   uint16_t number, uint32_t offset,
                                   const void *from, uint32_t size) {
  if (place->tensor.place == POET_PLACE_CURRENT) {
    if (!p->staging) {
      clear_bitmap(p);
      p->staging = true;
    }
    if (offset + size == place->size_bytes) {
      *staged_word(p, number) |= 1u << (number & 31);
    }
  }
  memcpy(place->ram + offset, from, size);
  return 0;
}

/* Erase the flash before a host writes the first byte of an object, or of one
 * of its notes. */
static POET_CHECKED int
erase_object(struct poet *p, const struct poet_object *place, uint32_t offset) {
  const uint32_t note = offset - POET_NOTE_OFFSET;
  uint32_t size = place->size_bytes;
  if (place->block == POET_MODEL_BLOCK) {
    size = offset ? POET_NOTE_BYTES : POET_NOTE_OFFSET;
  }
  return offset && note != 0 && note != POET_NOTE_BYTES
             ? 0
             : poet_erase(p, place->block + offset / POET_BLOCK,
                          size / POET_BLOCK);
}

/* Copy to or from the arena: either `to` or `from` is NULL. */
static POET_CHECKED int copy_arena(struct poet *p, uint32_t offset, void *to,
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
  struct poet_object place;
  if (p->status.running) {
    if (object != POET_OBJECT_TENSOR) {
      return POET_ERROR_busy;
    }
    /* Do not mount the storage now: that would unload the running schedule. */
    TRY(p->storage_status);
    if (poet_in_ram(p)) { /* the step uses the only place of the tensor */
      return POET_ERROR_busy;
    }
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
  if (place.ram) {
    return write_home(p, &place, tensor, offset, from, size);
  }
  if (place.tensor.size_bytes) {
    return write_tensor(p, &place, tensor, offset, from, size);
  }
  if (object != POET_OBJECT_JOB) {
    poet_reset(p);
    TRY(erase_object(p, &place, offset));
  }
  return poet_put(p, place.block, offset, from, size);
}

/* Check a tensor before its first byte is read. */
static POET_CHECKED int
check_stored(struct poet *p, const struct poet_object *place, uint16_t number) {
  if (p->verified == number) {
    return 0;
  }
  const int error = poet_verify(p, number, &place->tensor, place->next);
  if (error == POET_ERROR_page_damaged && !place->next &&
      place->tensor.place == POET_PLACE_CURRENT) {
    TRY(poet_roll_back(p));
    return poet_fail(p, error, number);
  }
  TRY(error);
  p->verified = number;
  return 0;
}

int poet_read(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
              void *to, uint32_t size) {
  struct poet_object place;
  if (object == POET_OBJECT_ARENA) {
    return copy_arena(p, offset, to, NULL, size);
  }
  TRY(locate(p, object, tensor, false, &place));
  if (!in_range(&place, offset, size)) {
    return poet_fail(p, POET_ERROR_bad_object, place.size_bytes);
  }
  if (place.ram) {
    memcpy(to, place.ram + offset, size);
    return 0;
  }
  if (!place.tensor.size_bytes) {
    return poet_get(p, place.block, offset, to, size);
  }
  TRY(check_stored(p, &place, tensor));
  return poet_get_pieces(p, &place, offset, to, size, NULL);
}

int poet_checksum(struct poet *p, uint8_t object, uint16_t tensor,
                  uint32_t size, uint32_t *crc) {
  struct poet_object place;
  TRY(locate(p, object, tensor, false, &place));
  if (!in_range(&place, 0, size)) {
    return poet_fail(p, POET_ERROR_bad_object, place.size_bytes);
  }
  *crc = place.ram ? poet_crc(0, place.ram, size) : 0;
  if (place.ram) {
    return 0;
  }
  TRY(poet_settle(p));
  poet_forget(p, POET_DATA_BLOCK); /* what the card has, not what was cached */
  return place.tensor.size_bytes
             ? poet_get_pieces(p, &place, 0, NULL, size, crc)
             : poet_crc_stored(p, place.block, 0, size, crc);
}

static bool anything_staged(const struct poet *p) {
  uint32_t any = 0;
  for (uint32_t i = 0; p->staging && i < p->model.stored_count; i += 32) {
    any |= *staged_word(p, i);
  }
  return any != 0;
}

/* Return whether FIXED tensors get the generation of the next commit. */
static bool renews_fixed(const struct poet *p) {
  return !poet_committed(p) || (p->staging && p->staging_fixed);
}

/* Complete the next slots: for a CURRENT tensor that was not written, copy its
 * current slot to its next slot. Then check the CRCs of all CURRENT tensors in
 * these slots. Copy INPUT tensors to the slots of the step after `step`. If a
 * FIXED tensor was written, give the others the same generation. An INPUT or
 * FIXED tensor that was never written stays damaged. */
static POET_CHECKED int complete_slots(struct poet *p, uint32_t step) {
  const uint32_t input_slot = 2 - ((step - poet_last_step(p)) & 1);
  for (uint32_t i = 0; i < p->model.stored_count; i++) {
    struct poet_tensor tensor;
    TRY(poet_read_tensor(p, i, &tensor));
    if (tensor.place == POET_PLACE_INPUT ||
        (tensor.place == POET_PLACE_FIXED && renews_fixed(p) &&
         poet_committed(p) && !is_staged(p, i))) {
      const bool input = tensor.place == POET_PLACE_INPUT;
      const int error = poet_carry(p, i, &tensor, input ? input_slot : 1);
      if (error && error != POET_ERROR_page_damaged) {
        return error;
      }
    } else if (tensor.place == POET_PLACE_CURRENT) {
      if (!is_staged(p, i)) {
        if (!poet_committed(p)) {
          return poet_fail(p, POET_ERROR_bad_object, i);
        }
        TRY(poet_carry(p, i, &tensor, 1));
      }
      TRY(poet_verify(p, i, &tensor, true));
    }
  }
  return 0;
}

/* Without storage: the weights in RAM become those of `step`. */
static POET_CHECKED int begin_live(struct poet *p, uint32_t step) {
  const bool renew = anything_staged(p) || !poet_committed(p);
  for (uint32_t i = 0; i < p->model.stored_count; i++) {
    struct poet_tensor tensor;
    TRY(poet_read_tensor(p, i, &tensor));
    if (tensor.place == POET_PLACE_CURRENT && !is_staged(p, i) &&
        p->live_step == POET_NO_STEP) {
      return poet_fail(p, POET_ERROR_bad_object, i);
    }
  }
  if (!renew && step == p->committed.now.step && step == p->live_step) {
    return 0;
  }
  TRY(replace_commit(p));
  p->live_step = step;
  p->result = (struct poet_step_result){.step = step};
  TRY(poet_commit_live(p, &(struct poet_state){0}));
  p->staging = false;
  p->verified = POET_NONE;
  return 0;
}

int poet_begin(struct poet *p, uint32_t step) {
  struct poet_commit commit;
  TRY(poet_ready(p));
  if (!p->loaded) {
    return POET_ERROR_no_schedule;
  }
  if (step == POET_NO_STEP) {
    return poet_fail(p, POET_ERROR_wrong_step, step);
  }
  if (poet_in_ram(p)) {
    return begin_live(p, step);
  }
  if (!anything_staged(p) && step == poet_last_step(p)) {
    return 0;
  }
  poet_forget_rows(p);
  TRY(complete_slots(p, step));
  commit = p->committed;
  if (renews_fixed(p)) {
    commit.now.fixed = p->committed.sequence + 1;
  }
  commit.model_crc = p->model.crc;
  commit.data_blocks = p->model.data_blocks;
  commit.slot = poet_next_slot(p);
  commit.now.step = step;
  commit.now.generation = p->committed.sequence + 1;
  commit.now.loss = 0.0f;
  commit.prior = (struct poet_state){0}; /* of other weights */
  TRY(poet_stored_digest(p, true, &commit.now.digest));
  /* Delete the job before the commit: the job belongs to the old weights, and a
   * restart after the commit must not continue it. If the card has no space for
   * a job, this write is refused, which does no harm. */
  const uint32_t none = 0;
  poet_ignore(poet_write(p, POET_OBJECT_JOB, 0, 0, &none, sizeof none));
  TRY(p->storage_status);
  TRY(poet_commit(p, &commit));
  p->staging = false;
  p->verified = POET_NONE;
  p->result = (struct poet_step_result){.step = step};
  return 0;
}
