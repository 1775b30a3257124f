/*
 * answers.h - the records of records.h with which a board answers a host.
 *
 * Python reads this file like records.h, which includes it.
 */
#ifndef POET_ANSWERS_H
#define POET_ANSWERS_H

#include "records.h"

struct poet_hello {
  uint16_t version;
  int16_t storage_status; /* 0, or the storage's error */
  uint32_t fingerprint;
  char board[16];
  char unique_id[16];
  uint32_t arena_bytes;
  uint32_t tick_hz;
  uint32_t storage_blocks; /* of the partition */
  uint32_t committed_step; /* 0xffffffff: nothing committed */
  /* CRC of the committed model; 0: no model is committed */
  uint32_t committed_model;
  uint32_t loaded_plan; /* CRC of the loaded plan; 0: no plan is loaded */
  uint16_t frame_bytes; /* largest payload of a request or reply */
  uint16_t resident_capacity;
  uint16_t tensor_capacity;
  uint16_t queue_capacity;
  uint16_t trace_capacity;
  uint8_t storage_version; /* format of the store; 0: no store */
  /* allocation unit of the card in MiB, rounded up; 0: unknown */
  uint8_t allocation_mib;
  uint32_t kernels[4]; /* bit i of all: the board has the kernel with code i */
};
POET_LAYOUT(poet_hello, 92);

/* What the board knows about its last reset and about the wires of its card.
 * The counts begin at that reset. */
struct poet_health {
  uint8_t reset;     /* why the board was reset: POET_RESET_* of wire.def */
  uint8_t exception; /* number of the exception that was a fault; else 0 */
  uint16_t card_khz; /* clock of the card's bus; 0: no card, or not known */
  /* program counter and link register at the fault, or when the watchdog was
   * about to bite; 0: unknown */
  uint32_t at, caller;
  uint32_t statement; /* latest statement that had begun before the reset */
};
POET_LAYOUT(poet_health, 16);

/* What the board knows about its SD card. The counts begin at the last reset.
 * Zeros: the board has no driver of cards. */
struct poet_card {
  uint8_t command;       /* the latest command */
  uint8_t response;      /* R1, the card's response to it; 0xff: none */
  uint8_t slower;        /* how many levels the clock is below the fastest */
  uint8_t is_ready;      /* the card is initialised */
  uint8_t supply_is_low; /* the supply is too low to write to a card */
  /* allocation unit in MiB, rounded up; 0: unknown */
  uint8_t allocation_mib;
  uint16_t khz;     /* clock of the bus after the latest initialisation */
  uint32_t retries; /* number of repeated accesses, of all jobs */
  uint8_t cid[16];  /* register CID of the card that was mounted last */
  /* the register that was read last, and its CRC-16: after a mount, the CSD */
  uint8_t bytes[18];
  uint8_t version2;      /* the card knows CMD8 */
  uint8_t high_capacity; /* SDHC or SDXC: commands number blocks, not bytes */
};
POET_LAYOUT(poet_card, 48);

struct poet_facts {
  uint32_t statement_count;
  /* number of arena bytes that the plan uses, found by validation; equals
   * arena_bytes of the plan */
  uint32_t peak_bytes;
  uint16_t resident_max;
  uint16_t queue_max;
};
POET_LAYOUT(poet_facts, 12);

/* A step may take hours, and 2^32 ticks may be 71 minutes. */
struct poet_step_result {
  uint64_t ticks;         /* of the whole step, commit included */
  uint64_t compute_ticks; /* total time of the compute statements */
  /* total time of the transfers, in the transfer lane */
  uint64_t transfer_ticks;
  uint64_t asleep_ticks;  /* time that the processor slept */
  uint64_t reading_ticks; /* time in which storage was read, for any purpose */
  uint64_t writing_ticks; /* time in which storage was written */
  uint32_t step;
  float loss;
  /* of the commit, and of the blocks that small tensors share */
  uint32_t commit_ticks;
  uint32_t serving_ticks; /* time spent on the host's requests */
  /* Overhead is work that is not in the plan: the commit, and answers to the
   * host. The next three fields are the parts of asleep_ticks, reading_ticks
   * and writing_ticks that are overhead. */
  uint32_t overhead_asleep_ticks;
  uint32_t overhead_reading_ticks;
  uint32_t overhead_writing_ticks;
  /* number of arena bytes up to the highest one that the step has written,
   * found by painting the arena before the step */
  uint32_t peak_bytes;
  uint32_t trace_records;
  uint32_t storage_retries; /* number of repeated storage accesses */
  /* how often the step began again because a page was damaged */
  uint32_t restarts;
  /* number of commits from one read-back of trailers to the next; 0: none */
  uint32_t readback_every;
};
POET_LAYOUT(poet_step_result, 96);

/* A commit of weights that stay in RAM during training. */
struct poet_saved {
  uint32_t step; /* committed step */
  uint32_t ticks;
  uint32_t erases; /* erased units of the chip's own flash */
};
POET_LAYOUT(poet_saved, 12);

struct poet_trace {
  uint16_t statement; /* index in the plan */
  uint8_t kind;       /* statement code */
  uint8_t zero;
  uint32_t begin; /* ticks from the start of the step; they wrap around */
  uint32_t end;
};
POET_LAYOUT(poet_trace, 12);

struct poet_status {
  uint8_t running;
  uint8_t zero;
  int16_t error; /* of the last step */
  uint32_t step;
  uint32_t statement;
  uint32_t cell; /* of a nest: number of parts that are computed */
};
POET_LAYOUT(poet_status, 16);

#endif
