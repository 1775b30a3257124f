/*
 * store.c - read and write the partition on storage, and commit.
 *
 * Interface:
 * - poet_get, poet_put, poet_read_block, poet_copy_block, poet_bounce and
 *   poet_crc_stored work through the cache.
 * - poet_commit makes the slots that a step has written the current ones.
 *
 * State: partition, store and committed, valid while storage_status is 0, and
 * the cache. A cache entry equals its block on storage, or is empty: writes go
 * through to storage at once, except for one block, `unsettled`. The transfer
 * lane bypasses the cache, so a step first removes the blocks of the data area
 * from the cache (interpreter.c).
 *
 * Why a power cut leaves the last committed step:
 * - A step writes only pages and slots that are not current.
 * - poet_commit flushes the tensors, then writes the commit record, then
 *   flushes again. So if a record is on storage, all tensors of its step are
 *   there too.
 * - There are two records, in different allocation units, and poet_commit
 *   replaces the older one. If that write is cut short, the newer record is
 *   still complete. poet_commit reads the record back, because a card may
 *   report a write that it has not made.
 * - The sequence number grows by an odd number, so that the records take turns.
 *   Of the records with a valid CRC, poet_mount takes the one with the greatest
 *   sequence number.
 */
#include <string.h>

#include "runtime.h"

/* Empty an entry, and make it the oldest one. */
static void empty(const struct poet *p, struct poet_cache *cache) {
  cache->block = POET_NO_BLOCK;
  cache->used = p->cache_uses - UINT32_MAX / 2;
}

void poet_forget(struct poet *p, uint32_t block) {
  if (p->unsettled >= block) {
    p->unsettled = POET_NO_BLOCK;
  }
  for (uint32_t i = 0; i < p->memory.cache_blocks; i++) {
    if (p->memory.cache[i].block >= block) {
      empty(p, &p->memory.cache[i]);
    }
  }
}

/* After any failure of the card, the next request mounts the card again:
 * another card may have been inserted. */
int poet_failed(struct poet *p, int error) {
  poet_forget(p, 0);
  p->readback_every = 0; /* what was still to be written is lost */
  p->storage_status = (int16_t)error;
  return error;
}

static bool must_stay(const struct poet *p, const struct poet_cache *cache) {
  return cache->block != POET_NO_BLOCK && cache->block == p->unsettled;
}

/* Return the entry that holds `block`. If there is none, empty the least
 * recently used entry and return it, but never the entry of `unsettled`.
 * Entries are compared by their age, cache_uses - used, so that `cache_uses`
 * may wrap around. */
static struct poet_cache *cached(struct poet *p, uint32_t block) {
  struct poet_cache *found = &p->memory.cache[p->cache_last];
  if (found->block == block) {
    return found;
  }
  for (uint32_t i = 0; i < p->memory.cache_blocks; i++) {
    struct poet_cache *other = &p->memory.cache[i];
    if (other->block == block) {
      found = other;
      break;
    }
    if (must_stay(p, found) ||
        (!must_stay(p, other) &&
         p->cache_uses - other->used > p->cache_uses - found->used)) {
      found = other;
    }
  }
  if (found->block != block) {
    found->block = POET_NO_BLOCK;
  }
  found->used = ++p->cache_uses;
  p->cache_last = (uint32_t)(found - p->memory.cache);
  return found;
}

void poet_give_up(struct poet *p, uint32_t block) {
  empty(p, cached(p, block));
}

/* With one entry, `unsettled` must make room for another block. The serial
 * application has more. */
static POET_CHECKED int make_room(struct poet *p, uint32_t block) {
  return POET_LIBRARY && p->memory.cache_blocks == 1 && p->unsettled != block
             ? poet_settle(p)
             : 0;
}

int poet_read_block(struct poet *p, uint32_t block, struct poet_cache **where,
                    bool *is_new) {
  TRY(make_room(p, block));
  struct poet_cache *cache = cached(p, block);
  *is_new = cache->block != block;
  if (*is_new) {
    if (p->port->read(p->port->context, poet_storage_block(p, block),
                      cache->words, 1)) {
      return poet_failed(p, POET_ERROR_storage_failed);
    }
    /* set only after the read, so that the entry is empty if the read fails */
    cache->block = block;
  }
  *where = cache;
  return 0;
}

static POET_CHECKED int read_block(struct poet *p, uint32_t block,
                                   struct poet_cache **where) {
  bool is_new;
  return poet_read_block(p, block, where, &is_new);
}

static POET_CHECKED int write_block(struct poet *p, struct poet_cache *cache,
                                    uint32_t block) {
  cache->block = block; /* if the write fails, failed() empties the entry */
  if (p->unsettled == block) {
    p->unsettled = POET_NO_BLOCK;
  }
  if (p->port->write(p->port->context, poet_storage_block(p, block),
                     cache->words, 1)) {
    return poet_failed(p, POET_ERROR_storage_failed);
  }
  return 0;
}

int poet_erase(struct poet *p, uint32_t block, uint32_t count) {
  if (!poet_is_flash(p)) {
    return 0;
  }
  poet_forget(p, block);
  const int error = poet_erase_blocks(p, block, count);
  return POET_LIBRARY && error == POET_BUSY ? error
         : error ? poet_failed(p, POET_ERROR_storage_failed)
                 : 0;
}

/* Write a record to an erased block. */
static POET_CHECKED int put_record(struct poet *p, uint32_t block,
                                   const void *record, uint32_t size) {
  struct poet_cache *cache = cached(p, block);
  memset(cache->words, 0, POET_BLOCK);
  memcpy(cache->words, record, size);
  return write_block(p, cache, block);
}

int poet_write_record(struct poet *p, uint32_t block, const void *record,
                      uint32_t size) {
  TRY(poet_erase(p, block, 1));
  return put_record(p, block, record, size);
}

int poet_flush_all(struct poet *p) {
  return poet_flush(p->port) ? poet_failed(p, POET_ERROR_storage_failed) : 0;
}

int poet_get(struct poet *p, uint32_t block, uint32_t offset, void *to,
             uint32_t size) {
  uint8_t *next = to;
  struct poet_cache *cache;
  while (size) {
    const uint32_t at = offset % POET_BLOCK;
    const uint32_t part = size < POET_BLOCK - at ? size : POET_BLOCK - at;
    TRY(read_block(p, block + offset / POET_BLOCK, &cache));
    memcpy(next, (const uint8_t *)cache->words + at, part);
    next += part;
    offset += part;
    size -= part;
  }
  return 0;
}

int poet_put(struct poet *p, uint32_t block, uint32_t offset, const void *from,
             uint32_t size) {
  const uint8_t *next = from;
  struct poet_cache *cache;
  while (size) {
    const uint32_t at = offset % POET_BLOCK;
    const uint32_t part = size < POET_BLOCK - at ? size : POET_BLOCK - at;
    const uint32_t target = block + offset / POET_BLOCK;
    if (part < POET_BLOCK) {
      TRY(read_block(p, target, &cache));
    } else {
      TRY(make_room(p, target));
      cache = cached(p, target);
    }
    memcpy((uint8_t *)cache->words + at, next, part);
    TRY(write_block(p, cache, target));
    next += part;
    offset += part;
    size -= part;
  }
  return 0;
}

int poet_settle(struct poet *p) {
  const uint32_t block = p->unsettled;
  return block == POET_NO_BLOCK ? 0 : write_block(p, cached(p, block), block);
}

#if POET_LIBRARY
int poet_bounce(struct poet *p, uint8_t **bounce) {
  TRY(make_room(p, POET_NO_BLOCK));
  *bounce = (uint8_t *)cached(p, POET_NO_BLOCK)->words;
  return 0;
}
#endif

int poet_put_later(struct poet *p, uint32_t block, uint32_t offset,
                   const void *from, uint32_t size) {
  struct poet_cache *cache;
  if (p->unsettled != block) {
    TRY(poet_settle(p));
  }
  TRY(read_block(p, block, &cache));
  memcpy((uint8_t *)cache->words + offset, from, size);
  p->unsettled = block;
  return 0;
}

int poet_copy_block(struct poet *p, uint32_t from, uint32_t to) {
  TRY(make_room(p, to));
  struct poet_cache *cache = cached(p, to);
  /* The cache entry of block `from` becomes the entry of block `to`. A block
   * never has two entries. */
  cache->block = POET_NO_BLOCK;
  TRY(read_block(p, from, &cache));
  return write_block(p, cache, to);
}

int poet_crc_stored(struct poet *p, uint32_t block, uint32_t offset,
                    uint32_t size, uint32_t *crc) {
  struct poet_cache *cache;
  while (size) {
    const uint32_t at = offset % POET_BLOCK;
    const uint32_t part = size < POET_BLOCK - at ? size : POET_BLOCK - at;
    TRY(read_block(p, block + offset / POET_BLOCK, &cache));
    *crc = poet_crc(*crc, (const uint8_t *)cache->words + at, part);
    if (part == POET_BLOCK) { /* the schedule's blocks are to stay */
      empty(p, cache);
    }
    offset += part;
    size -= part;
  }
  return 0;
}

/* Write the records to two blocks in turn, so that the previous record is never
 * overwritten. */
uint32_t poet_commit_block(uint32_t sequence) {
  return POET_COMMIT_BLOCK + POET_UNIT_BLOCKS * (sequence & 1);
}

/* The first flush makes the tensors safe before the record that names them is
 * written. The second flush makes the record safe before the caller relies on
 * it. */
static POET_CHECKED int put_commit(struct poet *p, struct poet_commit *commit,
                                   uint32_t further, uint32_t part) {
  if (p->committed.sequence > UINT32_MAX - further) { /* no number is left */
    return poet_failed(p, POET_ERROR_storage_failed);
  }
  commit->magic = POET_COMMIT_MAGIC;
  commit->sequence = p->committed.sequence + further;
  commit->every = p->plan.commit_every;
  commit->crc = poet_crc(0, commit, offsetof(struct poet_commit, crc));
  if (!poet_has_storage(p)) {
    p->committed = *commit;
    return 0;
  }
  POET_PART(p, part, poet_settle(p));
  POET_PART(p, part + 1, poet_flush_all(p));
  for (uint32_t attempt = 0;; attempt++) {
    const uint32_t block = poet_commit_block(commit->sequence);
    uint32_t crc = 0, found;
    POET_PART(p, part + 2 + 2 * attempt, poet_erase(p, block, 1));
    POET_PART(p, part + 3 + 2 * attempt,
              put_record(p, block, commit, sizeof *commit));
    TRY(poet_flush_all(p));
    poet_forget(p, block);
    TRY(poet_crc_stored(p, block, 0, offsetof(struct poet_commit, crc), &crc));
    TRY(poet_get(p, block, offsetof(struct poet_commit, crc), &found,
                 sizeof found));
    if (crc == commit->crc && found == crc) {
      p->committed = *commit;
      return 0;
    }
    if (attempt) {
      return poet_failed(p, POET_ERROR_storage_failed);
    }
  }
}

int poet_commit(struct poet *p, struct poet_commit *commit, uint32_t further) {
  if (poet_comes(p, POET_PART_second - 1)) {
    TRY(put_commit(p, commit, further, POET_PART_record));
    if (poet_pauses_after(p, POET_PART_second - 1) &&
        !commit->prior.generation) {
      return POET_BUSY;
    }
  }
  return commit->prior.generation ? 0
                                  : put_commit(p, commit, 1, POET_PART_second);
}
