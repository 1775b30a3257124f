/*
 * poet.h - train a network by an exact schedule, in memory that you own.
 *
 *   struct poet board = {0};
 *   poet_init(&board, &port, &memory);       port.h; nothing happens yet
 *   poet_write(&board, POET_OBJECT_MODEL, 0, 0, bytes, size);   parts of .poet
 *   poet_write(&board, POET_OBJECT_PLAN, 0, 0, bytes, size);
 *   poet_load(&board, model_size, plan_size, &facts);           validates all
 *   poet_write(&board, POET_OBJECT_TENSOR, i, 0, values, size); weights, data
 *   poet_begin(&board, 0);                   what is written are the weights
 *   poet_step(&board, 1, 0, 0, &result);     one training step, committed
 *
 * Functions return 0 or a negative POET_ERROR_*; `detail` of the state then
 * says where (see each). No heap, no globals. What poet_load has accepted
 * cannot fault in poet_step, even if the storage later returns other bytes.
 *
 * Every request may be repeated. A power cut at any moment leaves the weights
 * of the last committed step. The card is used only inside its partition of
 * type 0xDA:
 *
 *   block    0  poet_store
 *           64  commit record of even sequence numbers
 *          128  commit record of odd ones: in another erase group of the card
 *          192  model part (512 KiB)
 *         1216  plan part (64 KiB)
 *         1344  data area, in which poet_tensor.block counts
 *       behind  a job, if there is one
 */
#ifndef POET_POET_H
#define POET_POET_H

#include "port.h"
#include "records.h"

/* Every row of wire.def: POET_ERROR_no_storage = -4, POET_MESSAGE_hello = 1. */
enum poet_error {
#define ERROR(code, name, meaning, advice) POET_ERROR_##name = (code),
#include "wire.def"
};
enum poet_message {
#define MESSAGE(code, name, request, reply, meaning)                           \
  POET_MESSAGE_##name = (code),
#include "wire.def"
};

enum {
  POET_ERASE_BLOCKS = 64,
  POET_COMMIT_BLOCK = 64, /* and one erase group further */
  POET_MODEL_BLOCK = 192,
  POET_MODEL_BLOCKS = 1024,
  POET_PLAN_BLOCK = POET_MODEL_BLOCK + POET_MODEL_BLOCKS,
  POET_PLAN_BLOCKS = 128,
  POET_DATA_BLOCK = POET_PLAN_BLOCK + POET_PLAN_BLOCKS,
};

/* A range of the arena that is taken. A workspace is tensor NONE. */
struct poet_resident {
  uint32_t offset;
  uint32_t size_bytes;
  uint16_t tensor;
  uint16_t zero;
};

/* One block of storage in RAM. */
struct poet_cache {
  uint32_t block; /* in the partition, or POET_NO_BLOCK */
  uint32_t used;  /* the greatest was used last */
  uint32_t words[POET_BLOCK / 4];
};
#define POET_NO_BLOCK 0xffffffffu

/* All memory of the library but its state. Larger tables accept larger models;
 * each capacity is compared with the schedule when it is loaded. More cached
 * blocks, at least one, save readings of the schedule: one for the plan, one
 * for operators, one for tensors, and best all that the schedule has. */
struct poet_memory {
  uint8_t *arena; /* aligned to 4; the tensors, and nothing else */
  uint32_t arena_bytes;
  struct poet_resident *residents; /* tensors in RAM at once */
  uint16_t resident_capacity;
  uint32_t *bitmap; /* one bit a tensor, (tensor_capacity + 31) / 32 words */
  uint16_t tensor_capacity;
  struct poet_transfer *queue; /* transfers unfinished at once */
  uint16_t queue_capacity;
  uint16_t cache_blocks;
  struct poet_cache *cache;
  struct poet_trace *trace; /* statements that one step can trace */
  uint16_t trace_capacity;
};

/* Where a reader is in the plan. Counts wrap around together. */
struct poet_decoder {
  uint32_t bit;       /* next of the stream */
  uint32_t bits;      /* those that follow, the first `held` */
  uint32_t statement; /* next to be produced */
  uint32_t peak_bytes;
  uint32_t queued;   /* transfers since the start of the step */
  uint32_t finished; /* those that a wait has covered */
  uint16_t next_operator;
  uint16_t resident_count;
  uint16_t resident_max;
  uint16_t queue_max;
  uint16_t kept;        /* KEEP tensors that are on storage */
  uint16_t last_output; /* of the last compute, or NONE */
  uint16_t frees;       /* bits: inputs of `op` to free, bit 8: its output */
  uint16_t held;
};

struct poet {
  const struct poet_port *port;
  struct poet_memory memory;
  uint32_t detail; /* of the last error: a tensor, a statement, a size */

  /* Asked between statements of a step; anything but 0 stops it. */
  int (*poll)(void *context);
  void *poll_context;

  /* storage */
  int16_t storage_status; /* 0 when mounted */
  uint32_t partition;     /* its first block */
  uint32_t partition_blocks;
  struct poet_store store;
  struct poet_commit committed;
  uint32_t cache_uses; /* counts on */
  uint32_t cache_last; /* which was used last */

  /* schedule */
  bool loaded;
  struct poet_model model;
  struct poet_plan_header plan;
  uint16_t kept_at_start; /* stored tensors with the flag KEEP */
  uint16_t loss;          /* the tensor with the flag LOSS, or NONE */

  /* upload */
  bool staging;      /* `bitmap` has the CURRENT tensors written since begin */
  uint32_t verified; /* tensor whose slot on storage has a right CRC, or NONE */

  /* step */
  struct poet_decoder decoder;
  struct poet_op op;        /* of the last compute */
  uint32_t submitted;       /* transfers given to the port */
  uint32_t retired;         /* those whose end has been seen */
  uint32_t started;         /* ticks */
  struct poet_usage before; /* the step */
  uint32_t dirty_bytes;     /* of the arena, from its start: may be unpainted */
  uint16_t trace_first;
  uint16_t trace_count;
  struct poet_status status;
  struct poet_step_result result;
};

/* Take port and memory into use. Reads nothing from storage yet. */
void poet_init(struct poet *p, const struct poet_port *port,
               const struct poet_memory *memory);

/* Find the partition and its last commit. detail: blocks that are missing.
 * Called by whatever needs storage while storage_status is not 0. */
int poet_mount(struct poet *p);

/* Lay an empty store into the first total_blocks of the partition (0: all). */
int poet_format(struct poet *p, uint32_t total_blocks);

/* Who the board is and what it holds; mounts if need be. */
void poet_hello(struct poet *p, struct poet_hello *hello);

/* Write bytes of an object (POET_OBJECT_*). A tensor is complete when its last
 * byte is written: then its CRC is taken from storage and put behind it. What
 * is written to a CURRENT tensor counts only after poet_begin: the committed
 * values stay. What is written to an INPUT tensor is for the next step: while
 * one runs (poll), for the one behind it, and nothing else may be written then.
 * Writing a model or plan part unloads the schedule; the first tensor of
 * another model gives up the commit of the one before. */
int poet_write(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
               const void *from, uint32_t size);

/* Read bytes of an object: of a CURRENT tensor what was written since the last
 * begin, or else the committed values. Refuses what fails its CRC. */
int poet_read(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
              void *to, uint32_t size);

/* CRC-32 of an object's first bytes. */
int poet_checksum(struct poet *p, uint8_t object, uint16_t tensor,
                  uint32_t size, uint32_t *crc);

/* Validate the schedule on storage in one pass and make it current. detail: the
 * tensor (bad_table) or statement (bad_plan) that breaks a rule, or the size
 * needed (arena_small, table_small, storage_small). */
int poet_load(struct poet *p, uint32_t model_bytes, uint32_t plan_bytes,
              struct poet_facts *facts);

/* Commit the tensors as written, as the weights after `step` steps. detail: a
 * CURRENT tensor that was never written, or is damaged. */
int poet_begin(struct poet *p, uint32_t step);

/* Run training step `step`, which must follow the committed one; if it is the
 * committed one, give its result again. Statements trace_first and following
 * are traced. detail: the committed step, or the damaged tensor. */
int poet_step(struct poet *p, uint32_t step, uint16_t trace_first,
              uint16_t trace_count, struct poet_step_result *result);

/* Training without a host. open loads what the job on storage says and writes
 * the board's name there. next writes the loss of the last step, and puts a
 * batch where the next step reads it. poet_step(board, committed.step + 1, ...)
 * then trains it. An error other than that of the storage: there is no job, or
 * nothing left of it. */
int poet_job_open(struct poet *p, struct poet_job *job);
int poet_job_next(struct poet *p, const struct poet_job *job);

/* Forget the schedule. Storage stays as it is. */
void poet_reset(struct poet *p);

/* Run one operator in the arena `repeat` times: offsets has one for each input,
 * the output's and the workspace's. */
int poet_probe_op(struct poet *p, uint32_t step, uint16_t repeat,
                  const struct poet_op *op, const uint32_t *offsets,
                  uint32_t *ticks);

/* Move the arena's first bytes to or from the partition's last blocks, in
 * several erase groups; write commit-sized records there, flushed like a
 * commit. Refused with storage_small if a model uses those blocks. ticks: of
 * the transfers in their lane, of the commits; cpu_ticks: that the processor
 * was awake. */
int poet_probe_transfer(struct poet *p, bool write, uint32_t size,
                        uint16_t repeat, uint32_t *ticks, uint32_t *cpu_ticks);
int poet_probe_commit(struct poet *p, uint16_t repeat, uint32_t *ticks);

/* The rows of isa.def as text, and its CRC-32. */
extern const char poet_rows[];
uint32_t poet_rows_size(void);
uint32_t poet_fingerprint(void);

/* CRC-32 as zlib has it: start with 0, continue with the last result. */
uint32_t poet_crc(uint32_t crc, const void *data, uint32_t size);

#endif
