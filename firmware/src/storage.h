/*
 * storage.h - functions that use the port, of which runtime.h is a
 * continuation.
 */
#ifndef POET_STORAGE_H
#define POET_STORAGE_H

#include "poet/poet.h"

/* ---- port.c: the port's functions, or their defaults if an application has
 * left them out ---- */

/* The serial application leaves out none but `is_flash` and `erase`. */
#define POET_HAS(port, function) (!POET_LIBRARY || (port)->function)

uint32_t poet_ticks(const struct poet_port *port);
void poet_usage(const struct poet_port *port, struct poet_usage *usage);
void poet_idle(const struct poet_port *port);

/* Return 0 if the port cannot read or cannot write. */
static inline uint32_t poet_storage_blocks(const struct poet_port *port) {
  if (!POET_HAS(port, read) || !POET_HAS(port, write)) {
    return 0;
  }
  return POET_HAS(port, storage_blocks) ? port->storage_blocks(port->context)
                                        : port->blocks;
}

static inline uint32_t poet_allocation_mib(const struct poet_port *port) {
  return POET_HAS(port, allocation_mib) ? port->allocation_mib(port->context)
                                        : 0;
}

static inline POET_CHECKED int poet_flush(const struct poet_port *port) {
  return POET_HAS(port, flush) ? port->flush(port->context) : 0;
}

/* True: the storage is flash that must be erased before it is written. */
bool poet_is_flash(const struct poet *p);

/* True: the forward program has struct poet, and a step may follow. */
static inline bool poet_infers(const struct poet *p) {
#if POET_LIBRARY
  return p->infers;
#else
  (void)p;
  return false;
#endif
}

/* False: the schedule is on storage. */
static inline bool poet_in_memory(const struct poet *p) {
#if POET_LIBRARY
  return !POET_CARDS || p->infers || p->program != NULL;
#else
  (void)p;
  return false;
#endif
}

/* False: there is none, after the mount for a schedule in memory. */
static inline bool poet_has_storage(const struct poet *p) {
  return !POET_LIBRARY || p->partition_blocks;
}

/* True: a host has laid out the storage, so that it may hold schedules. */
static inline bool poet_is_card(const struct poet *p) {
  return !POET_LIBRARY || (POET_CARDS && p->store.magic == POET_STORE_MAGIC);
}

/* ---- progress.c: slices (poet/slices.h). A function that returns POET_BUSY is
 * called again with the same arguments, and goes on where it has stopped ----
 */

#if POET_LIBRARY
/* True: the slice has used up its budget. */
bool poet_must_pause(const struct poet *p);
/* Does part `number` of a sequence come next, or an earlier one? */
bool poet_comes(const struct poet *p, uint32_t number);
/* Note that part `number` has ended. Return poet_must_pause. */
bool poet_pauses_after(struct poet *p, uint32_t number);
/* Return the index at which the loop of this part goes on. */
uint32_t poet_cursor(const struct poet *p);
/* Note that the loop goes on at `index`. Return poet_must_pause. */
bool poet_pauses_at(struct poet *p, uint32_t index);
/* The same for an inner loop over bytes, with the CRC so far. */
bool poet_pauses_within(struct poet *p, uint32_t offset, uint32_t crc);
/* Return how many of `size` bytes, from byte `at` of a block on, belong to the
 * same slice. */
uint32_t poet_slice_bytes(const struct poet *p, uint32_t at, uint32_t size);
/* Give up an unfinished step or save. */
void poet_abandon(struct poet *p);
#else
static inline bool poet_must_pause(const struct poet *p) {
  (void)p;
  return false;
}
static inline bool poet_comes(const struct poet *p, uint32_t number) {
  (void)p;
  (void)number;
  return true;
}
static inline bool poet_pauses_after(const struct poet *p, uint32_t number) {
  return poet_comes(p, number) && poet_must_pause(p);
}
static inline uint32_t poet_cursor(const struct poet *p) {
  (void)p;
  return 0;
}
static inline bool poet_pauses_at(const struct poet *p, uint32_t index) {
  return poet_pauses_after(p, index);
}
static inline bool poet_pauses_within(const struct poet *p, uint32_t offset,
                                      uint32_t crc) {
  (void)crc;
  return poet_pauses_after(p, offset);
}
static inline uint32_t poet_slice_bytes(const struct poet *p, uint32_t at,
                                        uint32_t size) {
  (void)p;
  (void)at;
  return size;
}
static inline void poet_abandon(const struct poet *p) {
  (void)p;
}
#endif

/* Do part `number` of a sequence, unless an earlier slice has done it. */
#define POET_PART(p, number, call)                                             \
  do {                                                                         \
    if (poet_comes(p, number)) {                                               \
      TRY(call);                                                               \
      if (poet_pauses_after(p, number)) {                                      \
        return POET_BUSY;                                                      \
      }                                                                        \
    }                                                                          \
  } while (0)

/* The parts of finishing a step, and of a save, in their order. */
enum poet_commit_part {
  POET_PART_check, /* of the weights, at the end of a step */
  POET_PART_erase,
  POET_PART_write,
  POET_PART_settle,
  POET_PART_compare,
  POET_PART_read_back,
  POET_PART_record, /* and the 6 after it: the commit record */
  POET_PART_second = POET_PART_record + 7, /* the other record */
};

/* ---- map.c ---- */

#if POET_LIBRARY
/* Number of the first block that the library leaves to the application. It lies
 * after the blocks of the store; at the end of a card. */
#define POET_OWN_BLOCK 0x80000000u
/* Return the block of the storage on which this block of the partition lies. */
uint32_t poet_storage_block(struct poet *p, uint32_t block);
/* Erase a commit record, a slot, or own blocks of the application. */
POET_CHECKED int poet_erase_blocks(struct poet *p, uint32_t block,
                                   uint32_t count);
#else
static inline uint32_t poet_storage_block(const struct poet *p,
                                          uint32_t block) {
  return p->partition + block;
}
static inline POET_CHECKED int poet_erase_blocks(struct poet *p, uint32_t block,
                                                 uint32_t count) {
  return p->port->erase(p->port->context, p->partition + block, count);
}
#endif

/* ---- store.c: `block` is the number of a block of the partition ---- */

/* Return true if the newest commit belongs to the loaded model. */
bool poet_committed(const struct poet *p);
/* Write a commit record. The function itself sets the fields magic, sequence,
 * every and crc. The sequence number grows by `further`, which is odd. A state
 * without a prior state is written to both records: if one is lost, the other
 * must not name the weights of another training. */
POET_CHECKED int poet_commit(struct poet *p, struct poet_commit *commit,
                             uint32_t further);
/* Remove `block` and all later blocks from the cache. */
void poet_forget(struct poet *p, uint32_t block);
/* Let the next block take the place of this one, which is in the cache. */
void poet_give_up(struct poet *p, uint32_t block);
/* Return `error`, after which the storage is mounted again before its next
 * use. */
POET_CHECKED int poet_failed(struct poet *p, int error);
/* Find a block in the cache, or read it: then it `is_new`. */
POET_CHECKED int poet_read_block(struct poet *p, uint32_t block,
                                 struct poet_cache **where, bool *is_new);
/* Read or write `size` bytes. They begin `offset` bytes after the start of
 * `block`. */
POET_CHECKED int poet_get(struct poet *p, uint32_t block, uint32_t offset,
                          void *to, uint32_t size);
POET_CHECKED int poet_put(struct poet *p, uint32_t block, uint32_t offset,
                          const void *from, uint32_t size);
/* The same as poet_put, in one block, but the block is written only when
 * another one is written in this way, or by poet_settle. */
POET_CHECKED int poet_put_later(struct poet *p, uint32_t block, uint32_t offset,
                                const void *from, uint32_t size);
POET_CHECKED int poet_settle(struct poet *p);
#if POET_LIBRARY
/* Find memory for a block. The next use of the cache may overwrite it. */
POET_CHECKED int poet_bounce(struct poet *p, uint8_t **bounce);
#endif
POET_CHECKED int poet_copy_block(struct poet *p, uint32_t from, uint32_t to);
/* Erase blocks that will be written in ascending order, if the storage is the
 * chip's own flash. */
POET_CHECKED int poet_erase(struct poet *p, uint32_t block, uint32_t count);
/* Continue `crc` with stored bytes. */
POET_CHECKED int poet_crc_stored(struct poet *p, uint32_t block,
                                 uint32_t offset, uint32_t size, uint32_t *crc);
/* Erase a block, and write a record and zeros to it. */
POET_CHECKED int poet_write_record(struct poet *p, uint32_t block,
                                   const void *record, uint32_t size);
/* All that was written before survives a power cut. */
POET_CHECKED int poet_flush_all(struct poet *p);
/* Return the block of the commit record with this sequence number. */
uint32_t poet_commit_block(uint32_t sequence);

/* ---- mount.c ---- */

/* Mount the storage if needed. Return 0, or the reason why there is no
 * storage. */
POET_CHECKED int poet_ready(struct poet *p);
#if POET_LIBRARY
/* Refuse storage on which the validated program cannot train. */
POET_CHECKED int poet_check_storage(struct poet *p);
/* Lay out the storage, if it is blank. */
POET_CHECKED int poet_lay_out(struct poet *p);
#endif

#endif
