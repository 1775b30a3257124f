/*
 * mount.c - find the partition on storage, its store and its newest commit;
 * format a card, and lay out blank storage for a schedule in memory.
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
    return poet_in_memory(p) ? 0 : poet_failed(p, POET_ERROR_no_storage);
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
    p->partition_blocks = poet_in_memory(p) ? blocks : 0;
    return poet_in_memory(p) ? 0 : poet_failed(p, POET_ERROR_foreign_storage);
  }
  memcpy(&first, entry + FIRST, sizeof first);
  memcpy(&count, entry + COUNT, sizeof count);
  if (!first) { /* the store would replace the MBR */
    return poet_failed(p, poet_in_memory(p) ? POET_ERROR_not_blank
                                            : POET_ERROR_foreign_storage);
  }
  if (first > blocks || count > blocks - first) {
    p->detail = first - blocks + count;
    return poet_failed(p, POET_ERROR_storage_small);
  }
  p->partition = first;
  p->partition_blocks = count;
  const uint32_t too_few = poet_in_memory(p) ? 0 : POET_DATA_BLOCK;
  if (count <= too_few) {
    p->detail = too_few + 1 - count;
    return poet_failed(p, POET_ERROR_storage_small);
  }
  return 0;
}

static bool is_store(const struct poet_store *store, uint32_t magic) {
  return store->magic == magic &&
         store->crc == poet_crc(0, store, offsetof(struct poet_store, crc));
}

static POET_CHECKED int check_version(struct poet *p) {
  if (p->store.version != POET_VERSION) {
    p->detail = p->store.version;
    return poet_failed(p, POET_ERROR_storage_version);
  }
  return 0;
}

static POET_CHECKED int check_card(struct poet *p) {
  if (!is_store(&p->store, POET_STORE_MAGIC)) {
    return poet_failed(p, POET_ERROR_foreign_storage);
  }
  TRY(check_version(p));
  return p->store.total_blocks > p->partition_blocks ||
                 p->store.total_blocks <= POET_DATA_BLOCK
             ? poet_failed(p, POET_ERROR_foreign_storage)
             : 0;
}

/* Read the newest commit, and return the number of whole records. */
static POET_CHECKED int read_commits(struct poet *p, uint32_t *count) {
  struct poet_commit found;
  *count = 0;
  for (uint32_t i = 0; i < 2; i++) {
    TRY(poet_get(p, poet_commit_block(i), 0, &found, sizeof found));
    if (found.magic == POET_COMMIT_MAGIC &&
        found.crc == poet_crc(0, &found, offsetof(struct poet_commit, crc)) &&
        found.slot <= POET_SLOTS && found.prior_slot <= POET_SLOTS) {
      ++*count;
      if (found.sequence > p->committed.sequence) {
        p->committed = found;
      }
    }
  }
  return 0;
}

#if POET_LIBRARY
/* Return the unit of blank storage. */
static uint32_t new_unit(const struct poet *p) {
  uint32_t unit = POET_UNIT_BLOCKS;
  if (p->port->erase_blocks || poet_is_flash(p)) {
    return p->port->erase_blocks ? p->port->erase_blocks : POET_ERASE_BLOCKS;
  }
  while (unit > 1 &&
         poet_least_blocks(p->program, unit) > p->partition_blocks) {
    unit /= 2;
  }
  return unit;
}

static POET_CHECKED int is_blank(struct poet *p, bool *blank) {
  struct poet_cache *cache;
  bool is_new;
  TRY(poet_read_block(p, 0, &cache, &is_new));
  const uint32_t *words = cache->words;
  *blank = (words[0] == 0 || words[0] == UINT32_MAX) &&
           !memcmp(words, words + 1, POET_BLOCK - sizeof *words);
  return 0;
}

/* Find out whether the board may lay out the storage. If a power cut ended that
 * while it wrote the first block, two whole records without a step follow. A
 * new commit has another number than those that were there before. */
static POET_CHECKED int check_blank(struct poet *p) {
  bool blank;
  uint32_t commits = 0;
  TRY(is_blank(p, &blank));
  /* A card that a host has formatted has such records, too. */
  const bool is_host = !POET_CARDS && p->store.magic == POET_STORE_MAGIC;
  p->store = (struct poet_store){.unit_blocks = (uint16_t)new_unit(p)};
  if (!is_host && 3u * p->store.unit_blocks <= p->partition_blocks) {
    TRY(read_commits(p, &commits));
  }
  const bool begun = commits == 2 && p->committed.now.step == POET_NO_STEP;
  p->committed = (struct poet_commit){.sequence = p->committed.sequence,
                                      .now.step = POET_NO_STEP};
  /* An erase must not reach beyond the partition. */
  const bool fits =
      !poet_is_flash(p) || p->partition % p->store.unit_blocks == 0;
  return fits && (blank || begun) ? 0 : poet_failed(p, POET_ERROR_not_blank);
}

/* Storage for a schedule in memory is a card, or the board lays it out. */
static POET_CHECKED int check_store(struct poet *p, bool *has_commits) {
  const struct poet_store *store = &p->store;
  *has_commits = true;
  if (!poet_in_memory(p) || (POET_CARDS && is_store(store, POET_STORE_MAGIC))) {
    return check_card(p);
  }
  *has_commits = is_store(store, POET_DEVICE_MAGIC);
  if (!*has_commits) {
    return check_blank(p);
  }
  TRY(check_version(p));
  const uint32_t unit = p->port->erase_blocks;
  if (!store->unit_blocks || (unit && store->unit_blocks % unit)) {
    return poet_failed(p, POET_ERROR_not_blank);
  }
  return 3u * store->unit_blocks > p->partition_blocks
             ? poet_failed(p, POET_ERROR_storage_small)
             : 0;
}
#else
static POET_CHECKED int check_store(struct poet *p, bool *has_commits) {
  *has_commits = true;
  return check_card(p);
}
#endif

int poet_mount(struct poet *p) {
  bool has_commits = false;
  uint32_t count;
  if (!poet_owns_cache(p)) {
    p->partition_blocks = 0; /* poet_format must not write */
    return POET_ERROR_shared;
  }
#if !POET_CARDS
  if (!p->program) {
    return POET_ERROR_no_schedule;
  }
#endif
  poet_reset(p);
  poet_forget(p, 0);
  memset(&p->committed, 0, sizeof p->committed);
  p->committed.now.step = POET_NO_STEP;
  p->stale = true;

  TRY(find_partition(p));
  if (poet_has_storage(p)) {
    TRY(poet_get(p, 0, 0, &p->store, sizeof p->store));
    TRY(check_store(p, &has_commits));
  } else {
    p->store = (struct poet_store){0};
  }
  if (has_commits) {
    TRY(read_commits(p, &count));
  }
  p->storage_status = 0; /* set last: the state above is valid now */
  return 0;
}

int poet_ready(struct poet *p) {
  poet_abandon(p);
  return p->storage_status || !poet_owns_cache(p) ? poet_mount(p) : 0;
}

int poet_format(struct poet *p, uint32_t total_blocks) {
  struct poet_store store = {.magic = POET_STORE_MAGIC,
                             .version = POET_VERSION,
                             .total_blocks = total_blocks};
#if POET_LIBRARY
  p->program = NULL;
#endif
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
  /* Trailers depend on `identity` xor the number of a step. A CRC spreads the
   * ticks over all bits: then two cards with small numbers of steps hardly ever
   * have the same xor, even if they were formatted at about the same time. */
  const uint32_t ticks = poet_ticks(p->port);
  store.identity = poet_crc(p->store.identity + 1, &ticks, sizeof ticks);
  store.crc = poet_crc(0, &store, offsetof(struct poet_store, crc));
  /* Replace the commit records first: a new store never has an old commit. The
   * sequence numbers go on. So old tensors do not match new steps, even if the
   * power is now cut, or the card does not write the new identity. Only a
   * damaged record has a number that leaves none for others. */
  p->committed.sequence &= INT32_MAX;
  TRY(poet_commit(p, &(struct poet_commit){.now.step = POET_NO_STEP},
                  poet_number_after(p->committed.every)));
  TRY(poet_write_record(p, 0, &store, sizeof store));
  TRY(poet_flush_all(p));
  return poet_mount(p);
}

#if POET_LIBRARY
int poet_check_storage(struct poet *p) {
  memset(p->runs, 0, sizeof p->runs);
  if (!poet_in_memory(p)) {
    return 0;
  }
  if (!poet_has_storage(p)) {
    p->committed.now.step = POET_NO_STEP; /* weights of the load before */
    return 0;
  }
  if (p->committed.now.step != POET_NO_STEP &&
      p->committed.model_crc != p->trained) {
    return POET_ERROR_other_model;
  }
  const bool is_card = poet_is_card(p);
  const uint32_t least =
      is_card ? POET_DATA_BLOCK + p->model.data_blocks + p->program->own_blocks
              : poet_least_blocks(p->program, p->store.unit_blocks);
  return least > (is_card ? p->store.total_blocks : p->partition_blocks)
             ? poet_fail(p, POET_ERROR_storage_small, least)
             : 0;
}

/* Write the commit records first. As long as the first block is blank, or was
 * written in part, the storage is laid out again. */
int poet_lay_out(struct poet *p) {
  struct poet_store found, store = p->store;
  if (!poet_in_memory(p) || !poet_has_storage(p) || store.magic) {
    return 0;
  }
  TRY(poet_commit(p, &(struct poet_commit){.now.step = POET_NO_STEP}, 1));
  store.magic = POET_DEVICE_MAGIC;
  store.version = POET_VERSION;
  store.total_blocks = poet_least_blocks(p->program, store.unit_blocks);
  store.identity = 1 + poet_ticks(p->port);
  store.crc = poet_crc(0, &store, offsetof(struct poet_store, crc));
  TRY(poet_write_record(p, 0, &store, sizeof store));
  TRY(poet_flush_all(p));
  poet_forget(p, 0);
  TRY(poet_get(p, 0, 0, &found, sizeof found));
  if (memcmp(&found, &store, sizeof store)) {
    return poet_failed(p, POET_ERROR_storage_failed);
  }
  p->store = store;
  return 0;
}
#endif
