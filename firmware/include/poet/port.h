/*
 * port.h - all that the runtime wants from a chip, or from an operating system.
 *
 * A port fills one struct poet_port; nothing else of the library knows a
 * register or a system call. Blocks are POET_BLOCK bytes and count from the
 * start of the card or file. Functions return 0 or a negative POET_ERROR_*.
 */
#ifndef POET_PORT_H
#define POET_PORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One tensor on its way between RAM and storage. The port runs transfers in
 * the order in which they were submitted, and touches nothing behind `done`
 * once it has set it (release order, after everything else).
 *
 *   blocks on storage: | data ... | data ... | rest of data, 0, trailer |
 *
 * The trailer is the last POET_TRAILER bytes of the last block. If the rest
 * leaves no room for it, it has a block of its own.
 */
struct poet_transfer {
  uint8_t *data;
  uint32_t size_bytes;
  uint32_t block;      /* first block of the tensor's slot */
  uint32_t trailer[2]; /* written behind the data, or read from there */
  uint32_t owner;      /* what the trailer's second word must be */
  uint32_t begin;      /* ticks when the port took it up */
  uint32_t end;        /* ticks when it had finished */
  uint32_t statement;  /* of the plan that queued it */
  uint16_t tensor;
  int16_t status; /* 0 or the error that storage gave */
  uint8_t write;  /* 1: RAM to storage */
  atomic_uchar done;
  struct poet_transfer *next; /* for the port's own queue */
};

/* Ticks since the start, counting on without end. */
struct poet_usage {
  uint32_t asleep;  /* that the processor slept, waiting for anything */
  uint32_t reading; /* that storage was being read, by transfers or else */
  uint32_t writing; /* that it was being written */
};

struct poet_port {
  void *context;     /* handed back to every function */
  const char *board; /* at most 16 characters, as is unique_id */
  const char *unique_id;
  uint32_t tick_hz;

  uint32_t (*ticks)(void *context); /* a clock that wraps around at 2^32 */
  /* From which times energies are estimated. */
  void (*usage)(void *context, struct poet_usage *usage);
  /* Sleep until a transfer ends or a byte arrives, at most about 10 ms. */
  void (*idle)(void *context);

  /* Blocks of the storage, 0 if there is none. Called again at every mount, so
   * that a card may be put in later. */
  uint32_t (*storage_blocks)(void *context);
  /* Synchronous access to `count` blocks, also while transfers are queued:
   * then it takes its turn between two of them. */
  int (*read)(void *context, uint32_t block, void *data, uint32_t count);
  int (*write)(void *context, uint32_t block, const void *data, uint32_t count);
  /* Returns once everything written is safe from a power cut. */
  int (*flush)(void *context);
  /* Queue a transfer and return. A port without a transfer engine calls
   * poet_transfer_run here. */
  void (*submit)(void *context, struct poet_transfer *transfer);
  /* Does the transfer lane take the CRCs, by poet_transfer_run or
   * poet_transfer_check? If not, the library does, before a transfer out and
   * after one in. */
  bool lane_checks;

  /* Only for the serial application. receive waits at most `wait_ms` for the
   * first byte and returns how many it has stored; what comes while nobody
   * asks, a frame at least, is kept. send returns when the bytes
   * are on their way or nobody takes them. */
  size_t (*receive)(void *context, uint8_t *data, size_t size,
                    uint32_t wait_ms);
  void (*send)(void *context, const uint8_t *data, size_t size);
};

/* Run one transfer to its end with the port's read and write, and set `done`;
 * `bounce` holds one block. */
void poet_transfer_run(const struct poet_port *port,
                       struct poet_transfer *transfer, uint8_t *bounce);

/* The same in pieces, for a port that moves blocks by DMA: blocks of the whole
 * transfer; those of them that hold nothing but data and move straight from or
 * to `data`; and what stands in each of the one or two that remain. */
uint32_t poet_transfer_blocks(const struct poet_transfer *transfer);
uint32_t poet_transfer_whole(const struct poet_transfer *transfer);
void poet_transfer_fill(const struct poet_transfer *transfer, uint32_t index,
                        uint8_t *bounce);
void poet_transfer_take(struct poet_transfer *transfer, uint32_t index,
                        const uint8_t *bounce);

/* Take the CRC of the data: make the trailer of a transfer out, or judge that
 * of one that came in, by its status. `crc` is that of the first `blocks`
 * blocks, if they have been looked at before. */
void poet_transfer_check(struct poet_transfer *transfer, uint32_t crc,
                         uint32_t blocks);

#endif
