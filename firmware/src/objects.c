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

_Static_assert(POET_NOTE_OFFSET + 2 * POET_NOTE_BYTES ==
                   POET_MODEL_BLOCKS * POET_BLOCK,
               "the host's notes end the model area");

static void mark(struct poet *p, uint32_t tensor, bool set) {
  if (set) {
    poet_put_on_storage(p, tensor, 0);
  } else {
    poet_take_from_storage(p, tensor);
  }
}

/* Only a host reads and writes whole partitions, for cards of learners. */
static bool is_partition(uint8_t object) {
  return POET_CARDS && object == POET_OBJECT_PARTITION;
}

/* Find the place of an object on storage, for reading or for writing. */
static POET_CHECKED int locate(struct poet *p, uint8_t object, uint16_t number,
                               bool write, struct poet_object *place) {
  place->tensor.size_bytes = 0;
  place->size_bytes = 0;
  place->ram = NULL;
  place->next = false;
  /* During a step, do not mount the storage: that would unload its schedule. */
  const int error =
      write && p->status.running ? p->storage_status : poet_ready(p);
  const bool whole = is_partition(object);
  if (!whole || !p->partition_blocks) {
    TRY(error);
  }
  if (whole ? write && poet_is_flash(p)
            : object != POET_OBJECT_TENSOR && !poet_is_card(p)) {
    return poet_fail(p, POET_ERROR_bad_object, 0);
  }
  if (object == POET_OBJECT_MODEL || object == POET_OBJECT_PLAN) {
    const bool model = object == POET_OBJECT_MODEL;
    place->block = model ? POET_MODEL_BLOCK : POET_PLAN_BLOCK;
    place->size_bytes =
        POET_BLOCK * (uint32_t)(model ? POET_MODEL_BLOCKS : POET_PLAN_BLOCKS);
    return 0;
  }
  if (!whole && !p->loaded) {
    return POET_ERROR_no_schedule;
  }
  if (whole || object == POET_OBJECT_JOB) {
    const uint32_t most = UINT32_MAX / POET_BLOCK; /* offsets have 32 bits */
    const uint32_t end = whole ? p->partition_blocks : p->store.total_blocks;
    place->block = whole ? 0 : poet_job_block(p->model.data_blocks);
    if (place->block < end) {
      const uint32_t left = end - place->block;
      place->size_bytes = (left < most ? left : most) * POET_BLOCK;
    }
    return 0;
  }
  if (object != POET_OBJECT_TENSOR || number >= p->model.stored_count) {
    return poet_fail(p, POET_ERROR_bad_object, number);
  }
  TRY(poet_read_tensor(p, number, &place->tensor));
  const bool is_next = write || poet_is_staged(p, number);
  if (!poet_has_storage(p) && place->tensor.place == POET_PLACE_CURRENT &&
      !is_next && p->live_step == POET_NO_STEP) {
    return POET_ERROR_no_storage;
  }
  if (poet_in_ram(p) || poet_is_forward(p)
          ? place->tensor.place == POET_PLACE_INPUT || is_next ||
                !poet_has_storage(p)
          : place->tensor.place == POET_PLACE_INPUT && p->holds_batch) {
    place->size_bytes = place->tensor.size_bytes;
    TRY(poet_home(p, number, &place->ram));
    if (place->ram) {
      return 0;
    }
  }
  /* For an INPUT tensor, use the next slot if a step is running, because the
   * step reads the current slot. For others, use the next slot or the next
   * trailers to write, or to read bytes that were written since poet_begin. */
  place->next =
      place->tensor.place == POET_PLACE_INPUT ? p->status.running : is_next;
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

static void begin_staging(struct poet *p) {
  poet_clear_bitmap(p);
  p->staging = true;
  p->staging_fixed = false;
}

/* Write bytes of a tensor to its home. Until all bytes of a weight are there,
 * its last word is one that is not a number (weights.c). The mark of a batch
 * says that it is whole; without storage, that it is not. */
static POET_CHECKED int write_home(struct poet *p,
                                   const struct poet_object *place,
                                   uint16_t number, uint32_t offset,
                                   const void *from, uint32_t size) {
  bool is_marked = (offset + size == place->size_bytes) != poet_in_ram(p);
  void *last = __builtin_assume_aligned(
      place->ram + place->size_bytes - sizeof(uint32_t), sizeof(uint32_t));
  TRY(poet_expect(p, place, number, offset, size));
  if (!offset) {
    memset(last, 0xff, sizeof(uint32_t));
  }
  if (place->tensor.place == POET_PLACE_CURRENT) {
    if (!p->staging) {
      begin_staging(p);
    }
    is_marked = true;
  }
  mark(p, number, is_marked);
  memcpy(place->ram + offset, from, size);
  return 0;
}

static POET_CHECKED int write_tensor(struct poet *p,
                                     const struct poet_object *place,
                                     uint16_t number, uint32_t offset,
                                     const void *from, uint32_t size) {
  if (place->ram) {
    TRY(write_home(p, place, number, offset, from, size));
    if (place->tensor.place != POET_PLACE_INPUT || !p->reads_batch) {
      if (offset == p->arriving.offset) {
        p->arriving.offset += size;
      }
      return 0;
    }
  }
  TRY(poet_replace_commit(p));
  if (place->tensor.place != POET_PLACE_INPUT) {
    if (!p->staging) {
      poet_drop_steps(p);
      TRY(poet_renumber(p));
      poet_forget_rows(p);
      begin_staging(p);
    }
    p->staging_fixed |= place->tensor.place == POET_PLACE_FIXED;
    mark(p, number, true);
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
  if (from) {
    poet_use_arena(p);
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
    /* the step uses the only place of the tensor, or writes homes */
    if ((p->model.flags & (POET_MODEL_IN_RAM | POET_MODEL_FORWARD)) ||
        p->holds_batch || poet_is_committing(p)) {
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
  if (place.tensor.size_bytes) {
    return write_tensor(p, &place, tensor, offset, from, size);
  }
  if (object != POET_OBJECT_JOB) {
    poet_reset(p);
    TRY(erase_object(p, &place, offset));
  }
  TRY(poet_put(p, place.block, offset, from, size));
  if (is_partition(object)) { /* mount what it holds now */
    p->storage_status = POET_ERROR_foreign_storage;
  }
  return 0;
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

/* What a host reads of a tensor, it may rely on. */
static POET_CHECKED int commit_steps(struct poet *p, uint8_t object) {
  struct poet_saved saved;
  return object == POET_OBJECT_TENSOR && poet_uncommitted(p) &&
                 !p->status.running
             ? poet_save(p, &saved)
             : 0;
}

int poet_read(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
              void *to, uint32_t size) {
  struct poet_object place;
  TRY(commit_steps(p, object));
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
  TRY(commit_steps(p, object));
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
