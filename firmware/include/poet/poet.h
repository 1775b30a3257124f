/*
 * poet.h - train a network by an exact schedule, in memory that the caller
 * owns.
 *
 *   struct poet board = {0};
 *   poet_init(&board, &port, &memory);       see port.h; touches no storage
 *   poet_write(&board, POET_OBJECT_MODEL, 0, 0, bytes, size);   parts of .poet
 *   poet_write(&board, POET_OBJECT_PLAN, 0, 0, bytes, size);
 *   poet_load(&board, model_size, plan_size, &facts);           validates all
 *   poet_write(&board, POET_OBJECT_TENSOR, i, 0, values, size); weights, data
 *   poet_begin(&board, 0);                   commits them as the weights
 *   poet_step(&board, 1, 0, 0, &result);     runs and commits one step
 *
 * Functions return 0 or a negative POET_ERROR_*. The field `detail` of the
 * state then holds a number that says where; each function documents it. The
 * library has no heap and no globals. A schedule that poet_load has accepted
 * cannot fault in poet_step, even if the storage later returns other bytes.
 *
 * Every request may be repeated. A power cut at any moment leaves the weights
 * of the last committed step (store.c says how). The library reads and writes
 * only the partition of type 0xDA of the card:
 *
 *   block    0  poet_store
 *           64  commit record of even sequence numbers
 *          128  commit record of odd sequence numbers, in another erase group
 *          192  model part (512 KiB)
 *         1216  plan part (64 KiB)
 *         1344  data area; poet_tensor.block counts from here
 *        after  a job, if the card has one
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
  POET_COMMIT_BLOCK = 64, /* the other: one erase group later */
  POET_MODEL_BLOCK = 192,
  POET_MODEL_BLOCKS = 1024,
  POET_PLAN_BLOCK = POET_MODEL_BLOCK + POET_MODEL_BLOCKS,
  POET_PLAN_BLOCKS = 128,
  POET_DATA_BLOCK = POET_PLAN_BLOCK + POET_PLAN_BLOCKS,
};

/* A range of the arena in use. A workspace has tensor NONE. */
struct poet_resident {
  uint32_t offset;
  uint32_t size_bytes;
  uint16_t tensor;
  uint16_t zero;
};

/* One cached block of storage. */
struct poet_cache {
  uint32_t block; /* in the partition; POET_NO_BLOCK: empty */
  uint32_t used;  /* value of poet.cache_uses at the last use */
  uint32_t words[POET_BLOCK / 4];
};
#define POET_NO_BLOCK 0xffffffffu

/* All memory of the library except its state. Larger tables accept larger
 * models: poet_load compares each capacity with the schedule. At least one
 * cached block is needed. Three avoid most reads of the schedule: one for the
 * plan, one for operators, one for tensors. A cache as large as the schedule
 * avoids all of them. */
struct poet_memory {
  uint8_t *arena; /* aligned to 4; holds only tensors */
  uint32_t arena_bytes;
  struct poet_resident *residents; /* tensors in RAM at the same time */
  uint16_t resident_capacity;
  uint32_t *bitmap; /* 1 bit per tensor, (tensor_capacity + 31) / 32 words */
  uint16_t tensor_capacity;
  struct poet_transfer *queue; /* unfinished transfers */
  uint16_t queue_capacity;
  uint16_t cache_blocks;
  struct poet_cache *cache;
  struct poet_trace *trace; /* traced statements of one step */
  uint16_t trace_capacity;
};

/* Position in the plan, and the state that its statements have built so far.
 * `queued`, `finished` and poet.submitted, .retired count transfers since the
 * start of the step; they wrap around together. */
struct poet_decoder {
  uint32_t bit;            /* index of the next bit in the stream */
  uint32_t bits;           /* bits read ahead: the lowest `held` are valid */
  uint32_t statement;      /* index of the next statement */
  uint32_t peak_bytes;     /* highest end of a resident */
  uint32_t queued;         /* transfers that the plan has queued */
  uint32_t finished;       /* number of those that a wait has covered */
  uint16_t next_operator;  /* tensor that the next first-time compute makes */
  uint16_t resident_count; /* valid entries of poet_memory.residents */
  uint16_t resident_max;   /* highest resident_count */
  uint16_t queue_max;      /* most unfinished transfers */
  uint16_t kept;           /* tensors with KEEP that are on storage */
  uint16_t last_output;    /* output of the last compute, or NONE */
  uint16_t frees; /* bit i: free input i of `op` next; bit 8: its output */
  uint16_t held;  /* number of valid bits in `bits` */
};

struct poet {
  const struct poet_port *port;
  struct poet_memory memory;
  uint32_t detail; /* where the last error is: a tensor, a statement, a size */

  /* Called between statements of a step and while it waits for transfers. A
   * result other than 0 stops the step. NULL: never called. */
  int (*poll)(void *context);
  void *poll_context;

  /* Storage: valid while storage_status is 0 (store.c). */
  int16_t storage_status; /* 0: mounted; else the error */
  uint32_t partition;     /* first block of the partition on the card */
  uint32_t partition_blocks;
  struct poet_store store;
  struct poet_commit committed; /* newest; its step is POET_NO_STEP if none */
  uint32_t cache_uses;          /* number of cache accesses so far */
  uint32_t cache_last;          /* index of the entry used last */

  /* Schedule: valid while `loaded`. */
  bool loaded;
  struct poet_model model;
  struct poet_plan_header plan;
  uint16_t kept_at_start; /* number of stored tensors with the flag KEEP */
  uint16_t loss;          /* the tensor with the flag LOSS, or NONE */

  /* Upload: between steps. */
  bool staging; /* memory.bitmap marks CURRENT tensors written since begin */
  uint32_t verified; /* tensor whose slot has been checked by CRC, or NONE */

  /* Step. poet_load uses the decoder too, in place of a step. */
  struct poet_decoder decoder;
  struct poet_op op;        /* of the last compute */
  uint32_t submitted;       /* transfers passed to the port */
  uint32_t retired;         /* number of those whose end was checked */
  uint32_t started;         /* port ticks at the start of the step */
  struct poet_usage before; /* port usage at the start of the step */
  uint32_t dirty_bytes;     /* only bytes below this may lack paint */
  uint16_t trace_first;     /* first statement to trace */
  uint16_t trace_count;     /* number of statements to trace */
  struct poet_status status;
  struct poet_step_result result; /* of the current step, else of the last */
};

/* Initialise the state for this port and memory. Does not touch storage. */
void poet_init(struct poet *p, const struct poet_port *port,
               const struct poet_memory *memory);

/* Find the partition and its newest commit, and forget the schedule. Every
 * function that needs storage calls this while storage_status is not 0.
 * detail: number of missing blocks (storage_small). */
int poet_mount(struct poet *p);

/* Write an empty store to the first total_blocks of the partition (0: all). */
int poet_format(struct poet *p, uint32_t total_blocks);

/* Describe the board and what its storage holds. Mounts first if needed. */
void poet_hello(struct poet *p, struct poet_hello *hello);

/* Write bytes of an object (POET_OBJECT_*).
 *
 * Writing the last byte of a tensor completes it: the library then reads the
 * tensor back from storage and writes its CRC after it. Bytes of a CURRENT
 * tensor take effect at poet_begin; until then the committed values stay. Bytes
 * of an INPUT tensor are for the next step. While a step runs (from poll), only
 * INPUT tensors may be written, and they are for the step after it.
 *
 * Writing a model or plan part unloads the schedule. The first tensor written
 * for another model invalidates the commit of the previous model. */
int poet_write(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
               const void *from, uint32_t size);

/* Read bytes of an object. For a CURRENT tensor, these are the bytes written
 * since the last begin, or else the committed values. Refuses a tensor whose
 * CRC is wrong. */
int poet_read(struct poet *p, uint8_t object, uint16_t tensor, uint32_t offset,
              void *to, uint32_t size);

/* CRC-32 of the first `size` bytes of an object. */
int poet_checksum(struct poet *p, uint8_t object, uint16_t tensor,
                  uint32_t size, uint32_t *crc);

/* Validate the schedule on storage in one pass and load it. detail: the tensor
 * (bad_table) or statement (bad_plan) that breaks a rule, or the size needed
 * (arena_small, table_small, storage_small). */
int poet_load(struct poet *p, uint32_t model_bytes, uint32_t plan_bytes,
              struct poet_facts *facts);

/* Commit the written tensors as the weights after `step` steps. CURRENT tensors
 * that were not written keep their committed values. detail: a CURRENT tensor
 * that was never written, or is damaged. */
int poet_begin(struct poet *p, uint32_t step);

/* Run training step `step`, which must follow the committed step. If `step` is
 * the committed step, return its result again. trace_count statements from
 * trace_first on are traced. detail: the committed step, or the damaged
 * tensor. */
int poet_step(struct poet *p, uint32_t step, uint16_t trace_first,
              uint16_t trace_count, struct poet_step_result *result);

/* Training without a host. poet_job_open loads the schedule that the job on
 * storage names, and writes the board's name there. poet_job_next writes the
 * loss of the last step and the batch of the next one. Then
 * poet_step(p, p->committed.step + 1, ...) trains on that batch. An error that
 * is not a storage error means: the card has no job, or no steps are left. */
int poet_job_open(struct poet *p, struct poet_job *job);
int poet_job_next(struct poet *p, const struct poet_job *job);

/* Unload the schedule. Storage is not changed. */
void poet_reset(struct poet *p);

/* Measure: run one operator in the arena `repeat` times. `offsets` are arena
 * offsets of its inputs, then its output, then its workspace. */
int poet_probe_op(struct poet *p, uint32_t step, uint16_t repeat,
                  const struct poet_op *op, const uint32_t *offsets,
                  uint32_t *ticks);

/* Measure storage. poet_probe_transfer moves the first bytes of the arena to or
 * from the last blocks of the partition, in several erase groups.
 * poet_probe_commit writes blocks there, flushed like a commit. Both are
 * refused with storage_small if a model uses those blocks. `ticks`: time of the
 * transfers in their lane, or of the commits. `cpu_ticks`: time that the
 * processor was awake. */
int poet_probe_transfer(struct poet *p, bool write, uint32_t size,
                        uint16_t repeat, uint32_t *ticks, uint32_t *cpu_ticks);
int poet_probe_commit(struct poet *p, uint16_t repeat, uint32_t *ticks);

/* The rows of isa.def as text, and its CRC-32. */
extern const char poet_rows[];
uint32_t poet_rows_size(void);
uint32_t poet_fingerprint(void);

/* CRC-32 as in zlib: start with 0, continue with the last result. */
uint32_t poet_crc(uint32_t crc, const void *data, uint32_t size);

#endif
