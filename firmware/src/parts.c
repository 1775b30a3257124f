/*
 * parts.c - the two parts of a schedule, as a step reads them: from copies in
 * which each block is checked.
 *
 * poet_load copies both parts, and compares them with their CRCs on the way. A
 * block of a copy has 508 bytes of the part, and a check of the part's CRC, of
 * the number of the copy, of that of the block, and of these bytes. So whatever
 * a card returns later, a step uses the bytes that poet_load has seen, or ends
 * with an error. A copy that is right already is not written
 * again, so that cards do not wear out by loads.
 *
 * State: copies, the numbers of the copies of both parts. A new copy has a new
 * number: blocks of an earlier copy, which a failed load may have filled with
 * damaged bytes, do not match. The last block of a copy's area has the number.
 *
 * The chip's own flash is memory. It is read as it is, and has no copies. Nor
 * has a schedule in memory, which needs no storage and no cache either.
 */
#include <string.h>

#include "runtime.h"

enum {
  COPIED = POET_BLOCK - 4, /* bytes of a part in a block of its copy */
  /* The copies are twice as far apart as the parts, since they are longer. */
  COPY_BLOCKS = 2 * (POET_PLAN_BLOCK - POET_MODEL_BLOCK),
  DIFFERS = 1 /* a result: the copy is not right */
};

_Static_assert(POET_MODEL_BLOCKS *POET_BLOCK <= (COPY_BLOCKS - 1) * COPIED,
               "a copy ends before the block that has its number");

static uint32_t copy_of(uint32_t block) {
  return POET_COPY_BLOCK + 2 * (block - POET_MODEL_BLOCK);
}

/* Continue a check with more words. Each step is a bijection, so a change of
 * one word always shows. It takes an eighth of the time of a CRC: steps read
 * many blocks. */
static uint32_t mix(uint32_t check, const uint32_t *words, uint32_t size) {
  for (uint32_t i = 0; i < size / 4; i++) {
    check ^= words[i];
    check = (check << 13 | check >> 19) * 0x9e3779b1u;
  }
  return check;
}

/* Start the check of a block of a copy. */
static uint32_t start_check(const struct poet *p, uint32_t block) {
  const bool plan = block >= POET_COPY_BLOCK + COPY_BLOCKS;
  const uint32_t owner[3] = {plan ? p->plan.crc : p->model.crc, p->copies[plan],
                             block};
  return mix(0, owner, sizeof owner);
}

static POET_CHECKED int put_changed(struct poet *p, bool write, uint32_t block,
                                    uint32_t offset, const void *from,
                                    uint32_t size) {
  uint32_t found[8];
  TRY(poet_get(p, block, offset, found, size));
  if (!memcmp(found, from, size)) {
    return 0;
  }
  return write ? poet_put_later(p, block, offset, from, size) : DIFFERS;
}

/* Compare or write one block of the copy, and continue `crc` with the bytes in
 * it. */
static POET_CHECKED int copy_block(struct poet *p, bool write, uint32_t block,
                                   uint32_t offset, uint32_t left, uint32_t to,
                                   uint32_t *crc) {
  const uint32_t before = 8; /* a part's CRC leaves out magic number and CRC */
  uint32_t check = start_check(p, to), words[8];
  for (uint32_t at = 0, size; at < COPIED; at += size) {
    size = COPIED - at < sizeof words ? COPIED - at : sizeof words;
    const uint32_t part = left < size ? left : size;
    const uint32_t skip = offset < before ? before : 0;
    memset(words, 0, sizeof words);
    TRY(poet_get(p, block, offset, words, part));
    *crc = poet_crc(*crc, (const uint8_t *)words + skip, part - skip);
    check = mix(check, words, size);
    TRY(put_changed(p, write, to, at, words, size));
    offset += part;
    left -= part;
  }
  return put_changed(p, write, to, COPIED, &check, sizeof check);
}

/* Compare or write a copy, and compute the CRC of the part. */
static POET_CHECKED int copy_blocks(struct poet *p, bool write, uint32_t block,
                                    uint32_t size, uint32_t *crc) {
  *crc = 0;
  for (uint32_t at = 0, to = copy_of(block); at < size; at += COPIED) {
    TRY(copy_block(p, write, block, at, size - at, to++, crc));
  }
  return 0;
}

static POET_CHECKED int copy(struct poet *p, uint32_t block, uint32_t size,
                             uint32_t *crc) {
  const uint32_t last = copy_of(block) + COPY_BLOCKS - 1;
  uint32_t *number = &p->copies[block == POET_PLAN_BLOCK];
  TRY(poet_get(p, last, 0, number, sizeof *number));
  const int error = copy_blocks(p, false, block, size, crc);
  if (error != DIFFERS) {
    return error;
  }
  ++*number;
  TRY(poet_put(p, last, 0, number, sizeof *number));
  TRY(copy_blocks(p, true, block, size, crc));
  return poet_settle(p);
}

#if POET_LIBRARY
/* Return bytes of a part in memory, or NULL if it ends before them. */
static const uint8_t *in_memory(const struct poet *p, uint32_t block,
                                uint32_t offset, uint32_t size) {
  const struct poet_program *program = p->infers ? p->forward : p->program;
  const bool plan = block == POET_PLAN_BLOCK;
  const uint32_t bytes = plan ? program->plan_bytes : program->model_bytes;
  return offset > bytes || size > bytes - offset
             ? NULL
             : (plan ? program->plan : program->model) + offset;
}

static POET_CHECKED int get_from_memory(const struct poet *p, uint32_t block,
                                        uint32_t offset, void *to,
                                        uint32_t size) {
  const uint8_t *from = in_memory(p, block, offset, size);
  if (from && to) {
    memcpy(to, from, size);
  }
  return from ? 0 : POET_ERROR_bad_crc;
}

int poet_get_head(struct poet *p, uint32_t block, void *to, uint32_t size) {
  return poet_in_memory(p) ? get_from_memory(p, block, 0, to, size)
                           : poet_get(p, block, 0, to, size);
}
#endif

int poet_copy_part(struct poet *p, uint32_t block, uint32_t size,
                   const void *head, uint32_t head_bytes) {
  uint32_t crc = 0, wanted;
  uint8_t again[sizeof(struct poet_model)];
  memcpy(&wanted, (const uint8_t *)head + 4, sizeof wanted);
#if POET_LIBRARY
  if (poet_in_memory(p)) {
    const uint8_t *part = in_memory(p, block, 8, size - 8);
    return part && poet_crc(0, part, size - 8) == wanted ? 0
                                                         : POET_ERROR_bad_crc;
  }
#endif
  TRY(poet_is_flash(p) ? poet_crc_stored(p, block, 8, size - 8, &crc)
                       : copy(p, block, size, &crc));
  TRY(poet_get_part(p, block, 0, again, head_bytes));
  return crc == wanted && !memcmp(again, head, head_bytes) ? 0
                                                           : POET_ERROR_bad_crc;
}

int poet_get_part(struct poet *p, uint32_t block, uint32_t offset, void *to,
                  uint32_t size) {
#if POET_LIBRARY
  if (poet_in_memory(p)) {
    return get_from_memory(p, block, offset, to, size);
  }
#endif
  const bool checked = !poet_is_flash(p);
  const uint32_t held = checked ? COPIED : POET_BLOCK; /* bytes in a block */
  /* A division is slow on a Cortex-M0+, and this quotient is nearly right. */
  uint32_t number = offset / POET_BLOCK, at = offset - number * held;
  uint8_t *next = to;
  struct poet_cache *cache;
  bool is_new;
  while (at >= held) {
    at -= held;
    number++;
  }
  for (number += checked ? copy_of(block) : block; size; number++, at = 0) {
    const uint32_t part = size < held - at ? size : held - at;
    TRY(poet_read_block(p, number, &cache, &is_new));
    if (checked && is_new &&
        mix(start_check(p, number), cache->words, COPIED) !=
            cache->words[COPIED / 4]) {
      return poet_failed(p, POET_ERROR_bad_crc);
    }
    if (next) {
      memcpy(next, (const uint8_t *)cache->words + at, part);
      next += part;
    }
    size -= part;
  }
  return 0;
}
