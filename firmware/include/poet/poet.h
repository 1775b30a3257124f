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
 * A schedule in memory is not written to storage: poet_load_program loads it.
 * It also lays out storage that is blank. slices.h runs a step in slices.
 *
 * Functions return 0 or a negative POET_ERROR_*. After an error, the field
 * `detail` of struct poet is a number that locates the error; the comment of
 * each function explains this number. The library has no heap and no globals.
 * After poet_load has accepted a schedule, poet_step cannot cause a memory
 * fault, even if the storage later returns other bytes.
 *
 * Every request may be repeated. A power cut at any moment leaves the weights
 * of the last committed step (store.c says how). The library reads and writes
 * only the partition of type 0xDA of the card:
 *
 *   block    0  poet_store
 *           64  model part (512 KiB)
 *         1088  plan part (64 KiB)
 *         2048  copies of both parts, which the library makes (parts.c)
 *         8192  commit record of even sequence numbers
 *        16384  commit record of odd sequence numbers
 *        24576  data area; poet_tensor.block counts from here
 *        after  a job, if the card has one
 */
#ifndef POET_POET_H
#define POET_POET_H

#include "port.h"
#include "program.h"
#include "records.h"
#include "slices.h"
#include "small.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One constant for each row of wire.def, such as POET_ERROR_no_storage = -4 and
 * POET_MESSAGE_hello = 1. */
#ifndef POET_HAS_ERRORS /* learner.h has the same ones */
#define POET_HAS_ERRORS
enum poet_error {
#define ERROR(code, name, meaning, advice, detail) POET_ERROR_##name = (code),
#include "wire.def"
};
#endif
enum poet_reset {
#define RESET(code, name, meaning, advice) POET_RESET_##name = (code),
#include "wire.def"
};
enum poet_message {
#define MESSAGE(code, name, request, reply, meaning)                           \
  POET_MESSAGE_##name = (code),
#include "wire.def"
};

enum {
  POET_MODEL_BLOCK = 64,
  POET_MODEL_BLOCKS = 1024,
  POET_PLAN_BLOCK = POET_MODEL_BLOCK + POET_MODEL_BLOCKS,
  POET_PLAN_BLOCKS = 128,
  POET_COPY_BLOCK = 2048, /* of the model part; that of the plan part: 4096 */
  POET_COMMIT_BLOCK = POET_UNIT_BLOCKS, /* the other: one unit later */
  POET_DATA_BLOCK = POET_COMMIT_BLOCK + 2 * POET_UNIT_BLOCKS,
};

/* A range of the arena that a tensor or a workspace occupies. For a workspace,
 * `tensor` is POET_NONE. */
struct poet_resident {
  uint32_t offset;
  uint32_t size_bytes;
  uint16_t tensor;
  uint16_t on_storage; /* of a home, when an inference begins */
};

/* One cached block of storage. */
struct poet_cache {
#if POET_LIBRARY
  const struct poet *owner; /* that which was initialised last with it */
#endif
  /* number of the cached block, counted from the start of the partition;
   * POET_NO_BLOCK: the entry is empty */
  uint32_t block;
  /* value that poet.cache_uses had when this entry was last used */
  uint32_t used;
  uint32_t words[POET_BLOCK / 4];
};
#define POET_NO_BLOCK 0xffffffffu
#define POET_NO_SLOT 0xffffffffu

/* A chip with little flash renews whole tables, and a build without nests. */
#if defined __ARM_ARCH_6M__ || !POET_STREAMS
#define POET_KEEPS_ROWS 0
#else
#define POET_KEEPS_ROWS 1
#endif

/* Which rows of tables the next steps must renew: see rows.c. */
struct poet_rows {
  uint8_t *steps; /* 2 bits for each slab: (capacity + 3) / 4 bytes */
  /* number of slabs of all tables of a model; a table that exceeds it is
   * renewed as a whole */
  uint32_t capacity;
  uint32_t used;     /* slabs of the nests that the step has run */
  uint32_t first;    /* number of the running nest's first slab */
  uint32_t per_slab; /* rows of its slabs; 0: it keeps none */
  bool are_known;    /* `steps` holds for the slots on storage */
};

/* All memory of the library except struct poet, which nothing else uses: not
 * another struct poet either. poet_load compares each capacity with the needs
 * of the schedule, so larger tables accept larger models. The headers have
 * these needs: resident_max, queue_max and tensor_count. For a schedule in
 * memory, the cache needs one block, or none without storage. For a schedule on
 * storage, three blocks avoid most reads: for plan, operators and tensors. */
struct poet_memory {
  uint8_t *arena; /* aligned to 4; holds only tensors */
  uint32_t arena_bytes;
  struct poet_resident *residents; /* tensors in RAM at the same time */
  uint16_t resident_capacity;
  /* 1 bit for each tensor: (tensor_capacity + 31) / 32 words */
  uint32_t *bitmap;
  uint16_t tensor_capacity;
  struct poet_transfer *queue; /* unfinished transfers */
  uint16_t queue_capacity;
  uint16_t cache_blocks;
  struct poet_cache *cache;
  struct poet_trace *trace; /* traced statements of one step */
  uint16_t trace_capacity;
#if POET_KEEPS_ROWS
  struct poet_rows *rows; /* NULL: steps renew whole tables */
#endif
};

/* The decoder's position in the plan, and the state after all statements
 * decoded so far. `queued`, `finished` and poet.completed count page_ins and
 * page_outs since the start of the step, poet.submitted and poet.retired count
 * their pieces. These counts wrap around at 2^32. */
struct poet_decoder {
  uint32_t bit; /* index of the next bit in the plan's bit stream */
  /* bits of the plan that are read but not yet decoded; only the lowest `held`
   * bits are valid */
  uint32_t bits;
  uint32_t statement;  /* index of the next statement */
  uint32_t peak_bytes; /* highest end of a resident */
  uint32_t queued;     /* transfers that the plan has queued */
  /* number of transfers for whose end a `wait` statement has waited */
  uint32_t finished;
  /* number of the tensor that the next compute statement computes, unless that
   * statement recomputes an earlier tensor */
  uint16_t next_operator;
  /* number of valid entries in poet_memory.residents */
  uint16_t resident_count;
  uint16_t resident_max; /* highest resident_count */
  uint16_t queue_max;    /* most unfinished transfers */
  /* number of tensors with the flag KEEP that are on storage */
  uint16_t kept;
  /* output tensor of the last compute statement; POET_NONE: none was decoded
   * yet */
  uint16_t last_output;
  /* which tensors the next `free` statements free: bit i for input i of
   * poet.op, bit 8 for the output of poet.op */
  uint16_t frees;
  uint16_t held; /* number of valid bits in `bits` */
};

struct poet {
  const struct poet_port *port;
  struct poet_memory memory;
  /* number that locates the last error: a tensor, a statement or a size */
  uint32_t detail;

  /* The library calls `poll` between statements of a step and while the step
   * waits for transfers. A result other than 0 stops the step. NULL: no
   * function is called. */
  int (*poll)(void *context);
  void *poll_context;

  /* Storage. These fields are valid while storage_status is 0 (store.c). */
  int16_t storage_status; /* 0: mounted; else the error */
  /* true: storage may hold data that an unfinished attempt at a step wrote for
   * the next sequence number */
  bool stale;
  bool loaded;        /* a schedule: see there */
  uint32_t partition; /* first block of the partition on the card */
  uint32_t partition_blocks;
  struct poet_store store;
  /* newest commit; `now.step` is POET_NO_STEP if the card has no commit */
  struct poet_commit committed;
  /* cached block that must still be written; POET_NO_BLOCK: there is none */
  uint32_t unsettled;
  uint32_t cache_uses; /* number of cache accesses so far */
  uint32_t cache_last; /* index of the entry used last */

  /* Schedule: valid while `loaded`. */
#if POET_LIBRARY
  const struct poet_program *program; /* NULL: the schedule is on storage */
  struct poet_run runs[2];            /* those that were last used */
  const struct poet_program *forward; /* of poet_load_forward, or NULL */
  bool infers;         /* `model` and `plan` are those of `forward` */
  uint32_t inferences; /* so many calls of poet_infer */
  struct poet_slices slices;
#endif
  /* From here to `factor`, poet_infer keeps a copy (forward.c). */
  struct poet_model model;
  struct poet_plan_header plan;
  /* steps after which the live weights have their values: those in their homes
   * in RAM, and those on storage in the slots `live_slot`; POET_NO_STEP
   * (0xffffffff): they have to be restored from the newest commit */
  uint32_t live_step;
  uint8_t live_slot; /* used while live_step is not that of the commit */
  bool holds_batch;  /* an INPUT tensor has a home, although there is storage */
  bool reads_batch;  /* the plan reads an INPUT tensor from storage */
  bool lacks_batch;  /* an INPUT tensor is not in its home, or not all of it */
  uint16_t kept_at_start; /* number of stored tensors with the flag KEEP */
  uint16_t loss;    /* number of the tensor with the flag LOSS, or POET_NONE */
  uint32_t trained; /* crc of the model whose steps renew the weights */
  uint32_t digest;  /* of the trailers that the step has written */
  struct poet_status status;
  /* result of the running step; if no step runs, of the last step */
  struct poet_step_result result;
  float factor; /* of all learning rates in this step, if some change */

  /* Upload: between steps. */
  /* true: memory.bitmap marks the CURRENT and FIXED tensors that were written
   * since the last poet_begin */
  bool staging;
  bool staging_fixed; /* while staging: a FIXED tensor was written */
  uint32_t verified;  /* tensor whose CRC poet_read found right, or POET_NONE */
  /* slot of a tensor whose bytes arrive in order (tensors.c) */
  struct {
    uint32_t slot;   /* POET_NO_SLOT: there is none */
    uint32_t offset; /* number of bytes that have arrived */
    uint32_t crc;    /* of those that belong to the last piece */
    uint32_t digest; /* of the trailers of the pieces that are complete */
  } arriving;

  uint32_t copies[2]; /* numbers of the copies of both parts (parts.c) */

  /* State of a step. poet_load also uses `decoder`, but never during a step. */
  struct poet_decoder decoder;
  struct poet_op op;  /* operator of the last compute */
  uint32_t submitted; /* transfers of pieces passed to the port */
  /* number of these transfers whose result has been checked */
  uint32_t retired;
  uint32_t completed; /* number of tensors whose last piece is retired */
  uint32_t started;   /* port ticks at the start of the step */
  /* port ticks and the port's usage when they were last added to `result` */
  uint32_t counted;
  struct poet_usage before;
  /* from this offset on, no arena byte has changed since the arena was
   * painted */
  uint32_t dirty_bytes;
  /* true: storage does not have what the step wrote to commit it */
  bool unwritten;
  /* commits from one read-back of the trailers to the next; 0: not known yet */
  uint16_t readback_every;
  uint16_t trace_first; /* first statement to trace */
  uint16_t trace_count; /* number of statements to trace */
};

/* Initialise the state. Does not touch storage. If memory.cache belongs to
 * another struct poet, that one loses it: its functions then return the error
 * shared. A copy of struct poet has no cache. */
void poet_init(struct poet *p, const struct poet_port *port,
               const struct poet_memory *memory);

/* Find the partition and its newest commit, and unload the schedule. Every
 * function that needs storage calls poet_mount first if storage_status is not
 * 0. After the error storage_small, `detail` is the number of missing
 * blocks. */
POET_CHECKED int poet_mount(struct poet *p);

/* Write an empty store that uses the first `total_blocks` blocks of the
 * partition. 0 means all blocks. */
POET_CHECKED int poet_format(struct poet *p, uint32_t total_blocks);

/* Describe the board and the content of its storage. Mounts the storage first
 * if needed. */
void poet_describe(struct poet *p, struct poet_hello *hello);

/* Write bytes of an object (POET_OBJECT_*).
 *
 * Bytes of a tensor are written in order, from its first byte on; a request may
 * be repeated. After the error out_of_order, write the tensor again. The last
 * byte completes the tensor: the library then compares the CRCs on storage with
 * those of the bytes that it was given. Bytes of a CURRENT tensor take effect
 * at poet_begin; until then the committed values stay. Bytes of a FIXED tensor
 * need poet_begin too, but the values before are lost. Bytes of an INPUT tensor
 * are for the next step. While a training step runs, `poll` may call this
 * function, but only for INPUT tensors: for the step after the running one.
 *
 * Writing a model or plan part unloads the schedule. The first tensor written
 * for another model invalidates the commit of the previous model. If tensors
 * stay in RAM, writing the arena loses the batch there and steps that are not
 * committed; before poet_begin of tensors that were written, it unloads the
 * schedule. So does a measurement. */
POET_CHECKED int poet_write(struct poet *p, uint8_t object, uint16_t tensor,
                            uint32_t offset, const void *from, uint32_t size);

/* Read bytes of an object; of a tensor, those that were written since the last
 * poet_begin, or the committed ones. With storage, steps that are not committed
 * are committed first. A tensor whose CRC is wrong is refused. */
POET_CHECKED int poet_read(struct poet *p, uint8_t object, uint16_t tensor,
                           uint32_t offset, void *to, uint32_t size);

/* Compute the CRC-32 of the first `size` bytes of an object. */
POET_CHECKED int poet_checksum(struct poet *p, uint8_t object, uint16_t tensor,
                               uint32_t size, uint32_t *crc);

/* Validate the schedule on storage in one pass and load it. After an error,
 * `detail` is the tensor (bad_table) or statement (bad_plan) that breaks a
 * rule, or the size needed (arena_small, table_small, storage_small). The error
 * inexact: options of the compiler, or a mode of the processor, would change
 * results. poet_step returns it too. */
POET_CHECKED int poet_load(struct poet *p, uint32_t model_bytes,
                           uint32_t plan_bytes, struct poet_facts *facts);

/* Commit the written tensors as the weights after `step` steps. Tensors that
 * were not written keep their committed values; on a board without storage,
 * those of the last step. Steps that are not committed are lost, from the first
 * byte of a CURRENT or FIXED tensor on. After an error, `detail` is the number
 * of a CURRENT tensor that was not written, or not to its end, or is damaged.
 */
POET_CHECKED int poet_begin(struct poet *p, uint32_t step);

/* Run training step `step`, which must follow the last step, or the committed
 * step after an error. If `step` is the last step, return its result again.
 * Record `trace_count` statements, beginning with statement `trace_first`.
 * After wrong_step, `detail` is the last step. After page_damaged or
 * not_finite, it is the number of the tensor.
 *
 * If a forward program is loaded, run inference `step`; any number but the last
 * one is a new inference. It reads tensors that were written since poet_load,
 * or else the committed ones. poet_write writes its input, the last stored
 * tensor, to RAM. Its last tensor is in the arena afterwards. */
POET_CHECKED int poet_step(struct poet *p, uint32_t step, uint16_t trace_first,
                           uint16_t trace_count,
                           struct poet_step_result *result);

/* Commit the steps since the last commit. Steps without storage commit nothing:
 * flash wears out. Others commit at multiples of the plan's `commit_every`. */
POET_CHECKED int poet_save(struct poet *p, struct poet_saved *saved);

/* Train without a host. poet_job_open loads the schedule that the job on
 * storage names, and writes the board's name into the job. poet_job_next writes
 * the loss of the last step and the batch of the next step to storage. Then
 * poet_step trains on that batch, with the number of the next step. The error
 * no_schedule means that the card has no job, or that the job has no steps
 * left. */
POET_CHECKED int poet_job_open(struct poet *p, struct poet_job *job);
POET_CHECKED int poet_job_next(struct poet *p, const struct poet_job *job);

/* Unload the schedule. Storage is not changed. */
void poet_reset(struct poet *p);

/* Measure an operator: run it `repeat` times in the arena. `offsets` are the
 * arena offsets of the operator's inputs, then of its output, then of its
 * workspace. */
POET_CHECKED int poet_probe_op(struct poet *p, uint32_t step, uint16_t repeat,
                               const struct poet_op *op,
                               const uint32_t *offsets, uint32_t *ticks);

/* Measure storage. poet_probe_transfer moves the first bytes of the arena to or
 * from the last blocks of the partition, which lie in several erase groups.
 * poet_probe_commit writes and flushes such blocks as a commit does. Both
 * functions fail with storage_small if a model uses those blocks. `ticks` is
 * the time of the transfers in the transfer lane, or of the commits.
 * `cpu_ticks` is the time that the processor was awake. */
POET_CHECKED int poet_probe_transfer(struct poet *p, bool write, uint32_t size,
                                     uint16_t repeat, uint32_t *ticks,
                                     uint32_t *cpu_ticks);
POET_CHECKED int poet_probe_commit(struct poet *p, uint16_t repeat,
                                   uint32_t *ticks);

/* The rows of isa.def as text, the size of this text, and its CRC-32. */
extern const char poet_rows[];
uint32_t poet_rows_size(void);
uint32_t poet_fingerprint(void);

/* Return a CRC-32 as in zlib. Pass 0 as `crc` for the first bytes, and the last
 * result for the bytes that follow. */
uint32_t poet_crc(uint32_t crc, const void *data, uint32_t size);

#ifdef __cplusplus
}
#endif

#endif
