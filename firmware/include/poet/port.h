/*
 * port.h - everything that the runtime needs from a chip or operating system.
 *
 * A port fills in one struct poet_port. No other part of the library uses a
 * register or a system call. Blocks have POET_BLOCK bytes and are numbered from
 * the start of the card or file. Functions return 0 or a negative POET_ERROR_*.
 */
#ifndef POET_PORT_H
#define POET_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For functions that return 0 or an error: the compiler warns of a call that
 * ignores the result. */
#ifdef __GNUC__
#define POET_CHECKED __attribute__((warn_unused_result))
#else
#define POET_CHECKED
#endif

/* 1: the library is a part of an application, so that schedules may lie in
 * memory, and several struct poet may exist. The serial application has one,
 * and schedules on storage: it defines this as 0, for each of its files. */
#ifndef POET_LIBRARY
#define POET_LIBRARY 1
#endif

/* Ignore an error on purpose. For GCC, a cast to void is not enough. */
static inline void poet_ignore(int error) {
  (void)error;
}

/*
 * One transfer of a piece of a tensor between RAM and storage. The port runs
 * transfers in the order of submission. It calls poet_transfer_end last, and
 * does not touch the transfer afterwards: the library may reuse it at once.
 *
 *   blocks on storage: | data ... | data ... | rest of data, 0, trailer |
 *
 * The trailer is the last POET_TRAILER bytes of the last block. If the rest of
 * the data leaves no space for it, the trailer has a block of its own. If the
 * trailers are apart, the rest of the data and zeros fill the last block, and
 * the library moves the trailer. If tensors share a block, the port only reads
 * it: the library writes it.
 */
struct poet_transfer {
  uint8_t *data;
  uint32_t size_bytes;
  uint32_t block; /* first block of the piece, counted from the card's start */
  /* The trailer: CRC-32 of the data, then the owner (poet_piece). For a
   * transfer into RAM, the CRC-32 is that of the stored trailer, or that of the
   * data if the trailer is apart. */
  uint32_t trailer[2];
  /* for a trailer that is apart: its number among the trailers of the partition
   * that lie POET_TRAILER bytes after one another */
  uint32_t trailer_place;
  uint32_t begin;     /* ticks when the port started the transfer */
  uint32_t end;       /* ticks when the transfer finished */
  uint16_t statement; /* index of the statement that queued the transfer */
  uint16_t tensor;
  int16_t status; /* result: 0 or POET_ERROR_*; valid once it has ended */
  uint8_t write;  /* 1: RAM to storage */
  /* first byte of the data in its first block, divided by 4 */
  uint8_t first_word;
  bool apart : 1;  /* one of several pieces: its trailer lies elsewhere */
  bool renews : 1; /* first page_out of a NEXT tensor */
  bool last : 1;   /* the last piece of the tensor */
  bool shared : 1; /* the block holds other tensors too */
  bool nested : 1; /* a nest moves the piece */
  /* Only the decoder uses these two, for the transfer of the plan with the
   * number of this entry. */
  bool planned_write : 1;
  volatile uint8_t done; /* 1: the port has ended it */
  uint16_t planned_tensor;
  struct poet_transfer *next; /* link of the port's own queue */
};

/* End a transfer. What was written before is visible to those who see the end.
 * This does without <stdatomic.h>, which C++ does not have, and without atomic
 * operations, for which clang calls a library on a Cortex-M0+. */
static inline void poet_transfer_end(struct poet_transfer *transfer) {
  __atomic_thread_fence(__ATOMIC_RELEASE);
  transfer->done = 1;
}
static inline bool
poet_transfer_has_ended(const struct poet_transfer *transfer) {
  const bool ended = transfer->done != 0;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return ended;
}

/* Three times in ticks and one count, all since the start of the port. They
 * wrap around at 2^32. */
struct poet_usage {
  uint32_t asleep; /* time that the processor slept, for any reason */
  /* time in which storage was read, by transfers and by synchronous calls */
  uint32_t reading;
  /* time in which storage was written, by transfers and by synchronous calls */
  uint32_t writing;
  /* number of storage accesses that were repeated after an error */
  uint32_t retries;
  uint32_t erases; /* erased units of the chip's own flash */
};

struct poet_health; /* records.h */
struct poet_card;

/*
 * An application needs only `read` and `write` if it has storage, and `erase`
 * if that is flash. All other functions of this struct may be NULL, and all
 * other fields 0: their comments say what the library does then. Without
 * `read` or `write`, or without blocks, there is no storage: weights stay in
 * RAM, and are lost when the power goes.
 */
struct poet_port {
  void *context; /* first argument of every function */
  /* name of the board; `board` and `unique_id` have at most 16 characters
   * each */
  const char *board;
  const char *unique_id;
  uint32_t tick_hz;

  /* a clock that wraps around at 2^32; NULL: all times are 0 */
  uint32_t (*ticks)(void *context);
  /* Store the time in each power state in `usage`, for estimates of energy.
   * NULL: all are 0. */
  void (*usage)(void *context, struct poet_usage *usage);
  /* Sleep until a transfer ends or a byte arrives, at most about 10 ms. Return
   * at once if a transfer has ended since the last call. NULL: return at
   * once. */
  void (*idle)(void *context);

  /* Return the number of blocks of the storage, or 0 if there is no storage.
   * The library calls this function at every mount, so that a card may be
   * inserted later. NULL: the number is `blocks`. */
  uint32_t (*storage_blocks)(void *context);
  uint32_t blocks;
  /* Return the allocation unit of the storage in MiB, rounded up, or 0 if it is
   * unknown. A power cut during a write may damage a whole allocation unit.
   * NULL: it is unknown. */
  uint32_t (*allocation_mib)(void *context);
  /* Read or write `count` blocks, and return at the end of the access. The
   * library may call these functions while transfers are queued: the port then
   * puts the access between two transfers, or between two blocks of a
   * transfer. */
  int (*read)(void *context, uint32_t block, void *data, uint32_t count);
  int (*write)(void *context, uint32_t block, const void *data, uint32_t count);
  /* Return only when all data written before this call would survive a power
   * cut. NULL: what was written survives. */
  int (*flush)(void *context);
  /* True: there is no card, so the storage is the chip's own flash. `erase`
   * then erases `count` blocks, which are written in ascending order
   * afterwards; at most POET_ERASE_BLOCKS blocks that begin with a multiple of
   * it are erased together. If `is_flash` is NULL, the storage is flash if
   * there is an `erase`. On storage that the board has laid out, an erase is
   * of the erase unit that begins with `block`, and a block is written once
   * after it. */
  bool (*is_flash)(void *context);
  int (*erase)(void *context, uint32_t block, uint32_t count);
  /* Blocks of an erase unit, for storage that the board lays out; 1: each block
   * may be written alone. 0 stands for POET_ERASE_BLOCKS if the storage is
   * flash. Otherwise the objects then lie as far apart as the storage allows,
   * but at most 4 MiB, as a card needs. */
  uint16_t erase_blocks;
  /* Queue a transfer and return. NULL: the library runs the transfer with
   * `read` and `write`. */
  void (*submit)(void *context, struct poet_transfer *transfer);
  /* True: the transfer lane computes the CRCs, by poet_transfer_run or
   * poet_transfer_check. False: the library computes them, before a transfer
   * out of RAM and after a transfer into RAM. */
  bool lane_checks;
  /* Called before each statement, part of a statement and repetition of a
   * probe: none of them takes longer than the watchdog of the port allows.
   * NULL: the port has no watchdog. */
  void (*alive)(void *context, uint32_t statement);
  /* Fill in `health`, which is zero. NULL: the port knows nothing. */
  void (*health)(void *context, struct poet_health *health);
  /* Fill in `card`, which is zero. NULL: the port has no driver of cards. */
  void (*card)(void *context, struct poet_card *card);

  /* Only the serial application uses `receive` and `send`. `receive` waits at
   * most `wait_ms` for the first byte, stores at most `size` bytes and none
   * after a zero, and returns their number. Between calls the port buffers at
   * least two short frames. Unless the last byte is a zero, the next call
   * continues after the stored bytes: until then, the port may store bytes in
   * the rest of `data`. `send` returns when the bytes are on their way, or when
   * the host does not accept them. */
  size_t (*receive)(void *context, uint8_t *data, size_t size,
                    uint32_t wait_ms);
  void (*send)(void *context, const uint8_t *data, size_t size);
};

/* Run one whole transfer with the port's read and write functions, and end it.
 * `bounce` is a buffer of one block. */
void poet_transfer_run(const struct poet_port *port,
                       struct poet_transfer *transfer, uint8_t *bounce);

/* The parts of a transfer, for a port that moves blocks by DMA.
 * poet_transfer_blocks returns the number of blocks. poet_transfer_whole
 * returns the number of leading blocks that hold only data; they move directly
 * from or to `data`. One or two blocks remain: poet_transfer_fill makes the
 * content of block `index` before it is written, and poet_transfer_take uses
 * the content of block `index` after it was read. */
uint32_t poet_transfer_blocks(const struct poet_transfer *transfer);
uint32_t poet_transfer_whole(const struct poet_transfer *transfer);
void poet_transfer_fill(const struct poet_transfer *transfer, uint32_t index,
                        uint8_t *bounce);
void poet_transfer_take(struct poet_transfer *transfer, uint32_t index,
                        const uint8_t *bounce);

/* Compute the CRC of the data. For a transfer out of RAM, make the trailer. For
 * a transfer into RAM, check the trailer and set `status` if it is wrong. If
 * the trailer is apart, only store the CRC. If the CRC of the first `done`
 * bytes is known already, pass it as `crc`; otherwise pass 0 for both. */
void poet_transfer_check(struct poet_transfer *transfer, uint32_t crc,
                         uint32_t done);

#ifdef __cplusplus
}
#endif

#endif
