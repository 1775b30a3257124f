/*
 * mount.c - find the partition on storage, its store and its newest commit, and
 * format it.
 *
 * Before a request uses storage, poet_ready mounts it if needed.
 *
 * State: partition, store and committed (store.c).
 */
#include <string.h>

#include "runtime.h"

/* Read the first block and the length of the partition from the card's MBR. */
static POET_CHECKED int find_partition(struct poet *p) {
  enum { TABLE = 446, ENTRY = 16, END = 510, TYPE = 4, FIRST = 8, COUNT = 12 };
  const uint32_t blocks = poet_storage_blocks(p->port);
  struct poet_cache *cache;
  uint32_t first, count;
  bool is_new;

  p->partition = 0;
  p->partition_blocks = 0;
  if (!blocks) {
    return poet_failed(p, POET_ERROR_no_storage);
  }
  TRY(poet_read_block(p, 0, &cache, &is_new));
  /* drop the MBR: it is outside of the partition */
  cache->block = POET_NO_BLOCK;
  const uint8_t *mbr = (const uint8_t *)cache->words;
  const uint8_t *entry = mbr + TABLE;
  while (entry < mbr + END && entry[TYPE] != POET_PARTITION_TYPE) {
    entry += ENTRY;
  }
  if (mbr[END] != 0x55 || mbr[END + 1] != 0xaa || entry == mbr + END) {
    return poet_failed(p, POET_ERROR_foreign_storage);
  }
  memcpy(&first, entry + FIRST, sizeof first);
  memcpy(&count, entry + COUNT, sizeof count);
  if (!first) { /* the store would replace the MBR */
    return poet_failed(p, POET_ERROR_foreign_storage);
  }
  if (first > blocks || count > blocks - first) {
    p->detail = first - blocks + count;
    return poet_failed(p, POET_ERROR_storage_small);
  }
  if (count <= POET_DATA_BLOCK) {
    p->detail = POET_DATA_BLOCK + 1 - count;
    return poet_failed(p, POET_ERROR_storage_small);
  }
  p->partition = first;
  p->partition_blocks = count;
  return 0;
}

int poet_mount(struct poet *p) {
  struct poet_commit found;
  if (!poet_owns_cache(p)) {
    p->partition_blocks = 0; /* poet_format must not write */
    return POET_ERROR_shared;
  }
  poet_reset(p);
  poet_forget(p, 0);
  memset(&p->committed, 0, sizeof p->committed);
  p->committed.now.step = POET_NO_STEP;
  p->stale = true;

  TRY(find_partition(p));
  TRY(poet_get(p, 0, 0, &p->store, sizeof p->store));
  if (p->store.magic != POET_STORE_MAGIC ||
      p->store.crc !=
          poet_crc(0, &p->store, offsetof(struct poet_store, crc))) {
    return poet_failed(p, POET_ERROR_foreign_storage);
  }
  if (p->store.version != POET_VERSION) {
    p->detail = p->store.version;
    return poet_failed(p, POET_ERROR_storage_version);
  }
  if (p->store.total_blocks > p->partition_blocks ||
      p->store.total_blocks <= POET_DATA_BLOCK) {
    return poet_failed(p, POET_ERROR_foreign_storage);
  }
  for (uint32_t i = 0; i < 2; i++) {
    TRY(poet_get(p, poet_commit_block(i), 0, &found, sizeof found));
    if (found.magic == POET_COMMIT_MAGIC &&
        found.crc == poet_crc(0, &found, offsetof(struct poet_commit, crc)) &&
        found.slot <= POET_SLOTS && found.prior_slot <= POET_SLOTS &&
        found.sequence > p->committed.sequence) {
      p->committed = found;
    }
  }
  p->storage_status = 0; /* set last: the state above is valid now */
  return 0;
}

int poet_ready(struct poet *p) {
  return p->storage_status || !poet_owns_cache(p) ? poet_mount(p) : 0;
}

int poet_format(struct poet *p, uint32_t total_blocks) {
  struct poet_store store = {.magic = POET_STORE_MAGIC,
                             .version = POET_VERSION,
                             .total_blocks = total_blocks};
  const int error = poet_mount(p);
  if (!p->partition_blocks) {
    return error;
  }
  if (!total_blocks) {
    store.total_blocks = p->partition_blocks;
  }
  if (store.total_blocks > p->partition_blocks ||
      store.total_blocks <= POET_DATA_BLOCK) {
    return poet_fail(p, POET_ERROR_storage_small, POET_DATA_BLOCK + 1);
  }
  store.identity = p->store.identity + 1 + poet_ticks(p->port);
  store.crc = poet_crc(0, &store, offsetof(struct poet_store, crc));
  /* Zero the commit records first, and flush. If the power is then cut, the
   * store has no commit. A new store can never have an old commit. */
  TRY(poet_write_record(p, poet_commit_block(0), &store, 0));
  TRY(poet_write_record(p, poet_commit_block(1), &store, 0));
  TRY(poet_flush_all(p));
  TRY(poet_write_record(p, 0, &store, sizeof store));
  TRY(poet_flush_all(p));
  return poet_mount(p);
}
