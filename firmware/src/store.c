/* The partition: find it, format it, read and write bytes of it, commit. */
#include <string.h>

#include "runtime.h"

void poet_drop_caches(struct poet *p) {
  p->records.block = POET_NO_BLOCK;
  p->bits.block = POET_NO_BLOCK;
}

/* Any failure of the card makes the next request look at it afresh: it may be
 * another one by then. */
static int failed(struct poet *p, int error) {
  poet_drop_caches(p);
  p->storage_status = (int16_t)error;
  return error;
}

static int read_block(struct poet *p, struct poet_cache *cache,
                      uint32_t block) {
  if (cache->block == block) {
    return 0;
  }
  cache->block = POET_NO_BLOCK;
  if (p->port->read(p->port->context, p->partition + block, cache->words, 1)) {
    return failed(p, POET_ERROR_storage_failed);
  }
  cache->block = block;
  return 0;
}

static int write_block(struct poet *p, uint32_t block) {
  if (p->bits.block == block) {
    p->bits.block = POET_NO_BLOCK;
  }
  p->records.block = block;
  if (p->port->write(p->port->context, p->partition + block, p->records.words,
                     1)) {
    return failed(p, POET_ERROR_storage_failed);
  }
  return 0;
}

static int write_record(struct poet *p, uint32_t block, const void *record,
                        uint32_t size) {
  memset(p->records.words, 0, POET_BLOCK);
  memcpy(p->records.words, record, size);
  return write_block(p, block);
}

static int flush(struct poet *p) {
  return p->port->flush(p->port->context) ? failed(p, POET_ERROR_storage_failed)
                                          : 0;
}

int poet_get(struct poet *p, struct poet_cache *cache, uint32_t block,
             uint32_t offset, void *to, uint32_t size) {
  uint8_t *next = to;
  while (size) {
    const uint32_t at = offset % POET_BLOCK;
    const uint32_t part = size < POET_BLOCK - at ? size : POET_BLOCK - at;
    TRY(read_block(p, cache, block + offset / POET_BLOCK));
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
  while (size) {
    const uint32_t at = offset % POET_BLOCK;
    const uint32_t part = size < POET_BLOCK - at ? size : POET_BLOCK - at;
    const uint32_t target = block + offset / POET_BLOCK;
    if (part < POET_BLOCK) {
      TRY(read_block(p, &p->records, target));
    }
    memcpy((uint8_t *)p->records.words + at, next, part);
    TRY(write_block(p, target));
    next += part;
    offset += part;
    size -= part;
  }
  return 0;
}

int poet_crc_stored(struct poet *p, uint32_t block, uint32_t offset,
                    uint32_t size, uint32_t *crc) {
  *crc = 0;
  while (size) {
    const uint32_t at = offset % POET_BLOCK;
    const uint32_t part = size < POET_BLOCK - at ? size : POET_BLOCK - at;
    TRY(read_block(p, &p->records, block + offset / POET_BLOCK));
    *crc = poet_crc(*crc, (const uint8_t *)p->records.words + at, part);
    offset += part;
    size -= part;
  }
  return 0;
}

/* First block and length of the partition, from the card's MBR. */
static int find_partition(struct poet *p) {
  enum { TABLE = 446, ENTRY = 16, END = 510, TYPE = 4, FIRST = 8, COUNT = 12 };
  const uint32_t blocks = p->port->storage_blocks(p->port->context);
  const uint8_t *mbr = (const uint8_t *)p->records.words;
  const uint8_t *entry = mbr + TABLE;
  uint32_t first, count;

  p->partition = 0;
  p->partition_blocks = 0;
  if (!blocks) {
    return failed(p, POET_ERROR_no_storage);
  }
  TRY(read_block(p, &p->records, 0));
  p->records.block = POET_NO_BLOCK; /* it counted from the card's start */
  while (entry < mbr + END && entry[TYPE] != POET_PARTITION_TYPE) {
    entry += ENTRY;
  }
  if (mbr[END] != 0x55 || mbr[END + 1] != 0xaa || entry == mbr + END) {
    return failed(p, POET_ERROR_foreign_storage);
  }
  memcpy(&first, entry + FIRST, sizeof first);
  memcpy(&count, entry + COUNT, sizeof count);
  if (first > blocks || count > blocks - first) {
    p->detail = first - blocks + count;
    return failed(p, POET_ERROR_storage_small);
  }
  if (count <= POET_DATA_BLOCK) {
    p->detail = POET_DATA_BLOCK + 1 - count;
    return failed(p, POET_ERROR_storage_small);
  }
  p->partition = first;
  p->partition_blocks = count;
  return 0;
}

static uint32_t commit_block(uint32_t sequence) {
  return POET_COMMIT_BLOCK + POET_ERASE_BLOCKS * (sequence & 1);
}

int poet_mount(struct poet *p) {
  struct poet_commit found;
  poet_reset(p);
  poet_drop_caches(p);
  memset(&p->committed, 0, sizeof p->committed);
  p->committed.step = POET_NO_STEP;

  TRY(find_partition(p));
  TRY(poet_get(p, &p->records, 0, 0, &p->store, sizeof p->store));
  if (p->store.magic != POET_STORE_MAGIC || p->store.version != POET_VERSION ||
      p->store.crc !=
          poet_crc(0, &p->store, offsetof(struct poet_store, crc)) ||
      p->store.total_blocks > p->partition_blocks ||
      p->store.total_blocks <= POET_DATA_BLOCK) {
    return failed(p, POET_ERROR_foreign_storage);
  }
  for (uint32_t i = 0; i < 2; i++) {
    TRY(poet_get(p, &p->records, commit_block(i), 0, &found, sizeof found));
    if (found.magic == POET_COMMIT_MAGIC &&
        found.crc == poet_crc(0, &found, offsetof(struct poet_commit, crc)) &&
        found.sequence > p->committed.sequence) {
      p->committed = found;
    }
  }
  p->storage_status = 0;
  return 0;
}

int poet_ready(struct poet *p) {
  return p->storage_status ? poet_mount(p) : 0;
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
  store.identity = p->store.identity + 1 + p->port->ticks(p->port->context);
  store.crc = poet_crc(0, &store, offsetof(struct poet_store, crc));
  /* Commits go first: an interrupted format leaves nothing that looks whole. */
  TRY(write_record(p, commit_block(0), &store, 0));
  TRY(write_record(p, commit_block(1), &store, 0));
  TRY(flush(p));
  TRY(write_record(p, 0, &store, sizeof store));
  TRY(flush(p));
  return poet_mount(p);
}

bool poet_committed(const struct poet *p) {
  return p->loaded && p->committed.step != POET_NO_STEP &&
         p->committed.model_crc == p->model.crc;
}

/* All that was written before is safe when the record is, and the record before
 * it stays until then. */
int poet_commit(struct poet *p, struct poet_commit commit) {
  commit.magic = POET_COMMIT_MAGIC;
  commit.sequence = p->committed.sequence + 1;
  commit.crc = poet_crc(0, &commit, offsetof(struct poet_commit, crc));
  TRY(flush(p));
  TRY(write_record(p, commit_block(commit.sequence), &commit, sizeof commit));
  TRY(flush(p));
  p->committed = commit;
  return 0;
}
