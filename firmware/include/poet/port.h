/*
 * port.h - everything that the runtime needs from a chip or operating system.
 *
 * A port fills in one struct poet_port. No other part of the library knows a
 * register or a system call. Blocks have POET_BLOCK bytes and are numbered from
 * the start of the card or file. Functions return 0 or a negative POET_ERROR_*.
 */
#ifndef POET_PORT_H
#define POET_PORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One transfer of a tensor between RAM and storage. The port runs transfers in
 * the order of submission. It sets `done` last, with release order, and does
 * not touch the transfer afterwards: the library may reuse it at once.
 *
 *   blocks on storage: | data ... | data ... | rest of data, 0, trailer |
 *
 * The trailer is the last POET_TRAILER bytes of the last block. If the rest of
 * the data leaves no space for it, the trailer has a block of its own.
 */
struct poet_transfer {
  uint8_t *data;
  uint32_t size_bytes;
  uint32_t block;      /* first block of the tensor's slot */
  uint32_t trailer[2]; /* CRC-32 of the data, owner; written or read */
  uint32_t owner;      /* required value of the trailer's second word */
  uint32_t begin;      /* ticks when the port started the transfer */
  uint32_t end;        /* ticks when the transfer finished */
  uint32_t statement;  /* index of the statement that queued it */
  uint16_t tensor;
  int16_t status; /* 0 or POET_ERROR_*; valid once `done` is set */
  uint8_t write;  /* 1: RAM to storage */
  atomic_uchar done;
  struct poet_transfer *next; /* link of the port's own queue */
};

/* Ticks since the port started. The counters wrap around at 2^32. */
struct poet_usage {
  uint32_t asleep;  /* the processor slept, for whatever reason */
  uint32_t reading; /* storage was read, by transfers or synchronously */
  uint32_t writing; /* storage was written, likewise */
};

struct poet_port {
  void *context;     /* first argument of every function */
  const char *board; /* at most 16 characters, as is unique_id */
  const char *unique_id;
  uint32_t tick_hz;

  uint32_t (*ticks)(void *context); /* a clock that wraps around at 2^32 */
  /* Time in each power state, for estimates of energy. */
  void (*usage)(void *context, struct poet_usage *usage);
  /* Sleep until a transfer ends or a byte arrives, at most about 10 ms. Return
   * at once if a transfer has ended since the last call. */
  void (*idle)(void *context);

  /* Number of blocks of the storage, 0 if there is none. Called at every mount,
   * so that a card may be inserted later. */
  uint32_t (*storage_blocks)(void *context);
  /* Synchronous access to `count` blocks. Allowed while transfers are queued:
   * the port then runs it between two of them. */
  int (*read)(void *context, uint32_t block, void *data, uint32_t count);
  int (*write)(void *context, uint32_t block, const void *data, uint32_t count);
  /* Return only when everything written before survives a power cut. */
  int (*flush)(void *context);
  /* Queue a transfer and return. A port without a transfer engine calls
   * poet_transfer_run here. */
  void (*submit)(void *context, struct poet_transfer *transfer);
  /* True: the transfer lane computes the CRCs, by poet_transfer_run or
   * poet_transfer_check. False: the library computes them, before a transfer
   * out of RAM and after a transfer into RAM. */
  bool lane_checks;

  /* Only for the serial application. receive waits at most `wait_ms` for the
   * first byte and returns the number of bytes stored. The port buffers at
   * least one frame between calls. send returns when the bytes are on their
   * way, or when the host does not take them. */
  size_t (*receive)(void *context, uint8_t *data, size_t size,
                    uint32_t wait_ms);
  void (*send)(void *context, const uint8_t *data, size_t size);
};

/* Run one whole transfer with the port's read and write functions, and set
 * `done`. `bounce` is a buffer of one block. */
void poet_transfer_run(const struct poet_port *port,
                       struct poet_transfer *transfer, uint8_t *bounce);

/* The parts of a transfer, for a port that moves blocks by DMA. _blocks: number
 * of blocks of the transfer. _whole: number of leading blocks that hold only
 * data; they move directly from or to `data`. One or two blocks remain: _fill
 * makes the content of block `index` before it is written, _take uses the
 * content of block `index` after it was read. */
uint32_t poet_transfer_blocks(const struct poet_transfer *transfer);
uint32_t poet_transfer_whole(const struct poet_transfer *transfer);
void poet_transfer_fill(const struct poet_transfer *transfer, uint32_t index,
                        uint8_t *bounce);
void poet_transfer_take(struct poet_transfer *transfer, uint32_t index,
                        const uint8_t *bounce);

/* Compute the CRC of the data. For a transfer out of RAM, make the trailer. For
 * one into RAM, compare the trailer and set `status` if it is wrong. `crc` is
 * the CRC of the first `blocks` blocks, if it is known already; otherwise pass
 * 0 for both. */
void poet_transfer_check(struct poet_transfer *transfer, uint32_t crc,
                         uint32_t blocks);

#endif
