/*
 * records.h - every fixed little-endian record that enters or leaves a board.
 *
 * Python reads this same file through cffi (poet_host/isa.py), without the
 * lines that begin with # and without the POET_LAYOUT assertions. So use only
 * plain structs of fixed-width fields, with alignment up to 4 and no padding.
 * The members of a union are different names of one field. Different kernels
 * use different names.
 */
#ifndef POET_RECORDS_H
#define POET_RECORDS_H

#include <assert.h>
#include <stdint.h>

#define POET_LAYOUT(tag, size) static_assert(sizeof(struct tag) == size, #tag)

#define POET_NONE 0xffffu    /* no tensor */
#define POET_INPUTS 8        /* maximum inputs of an operator */
#define POET_CUT_AXES 3u     /* axes along which a tensor can be cut */
#define POET_LOOPS 7         /* maximum loops of a nest */
#define POET_NEST_BYTES 372u /* of a nest's state, without its operands */
#define POET_NEST_OPERAND_BYTES 116u /* of the state of each operand */
#define POET_BLOCK 512u              /* bytes of a storage block */
#define POET_TRAILER 8u          /* bytes of a trailer: CRC u32, owner u32 */
#define POET_SHARED_BYTES 248u   /* largest tensor that shares a block */
#define POET_SLOTS 3u            /* number of slots of a CURRENT tensor */
#define POET_READBACK_PERCENT 1u /* of a step, for reading trailers back */
#define POET_UNIT_BLOCKS 8192u   /* 4 MiB: the allocation unit of most cards */
#define POET_ERASE_BLOCKS 8u /* a multiple of the erase unit of every chip */
#define POET_PARTITION_TYPE 0xdau     /* type of poet's partition in an MBR */
#define POET_MODEL_MAGIC 0x4d544f50u  /* "POTM" */
#define POET_PLAN_MAGIC 0x50544f50u   /* "POTP" */
#define POET_META_MAGIC 0x4a544f50u   /* "POTJ" */
#define POET_ORIGIN_MAGIC 0x4f544f50u /* "POTO" */
#define POET_STORE_MAGIC 0x53544f50u  /* "POTS" */
#define POET_COMMIT_MAGIC 0x43544f50u /* "POTC" */
#define POET_JOB_MAGIC 0x4c544f50u    /* "POTL" */
#define POET_NOTE_MAGIC 0x4e544f50u   /* "POTN" */
#define POET_NOTE_OFFSET 393216u      /* of the two notes in the model area */
#define POET_NOTE_BYTES 65536u        /* of each note */
#define POET_VERSION 2

/* Values of poet_tensor.place: where a tensor lies on storage. */
#define POET_PLACE_NONE 0 /* never on storage */
#define POET_PLACE_PAGE 1 /* page, valid only within one step */
/* frozen tensor with one slot, which the host writes */
#define POET_PLACE_FIXED 2
/* tensor with POET_SLOTS slots; its value is in the slot that is current */
#define POET_PLACE_CURRENT 3
/* new value of a CURRENT tensor, in the slot that the step's commit makes
 * current */
#define POET_PLACE_NEXT 4
/* input with two slots: one for this step, one for the next step */
#define POET_PLACE_INPUT 5

/* Objects that the messages `write`, `read` and `checksum` can name. */
#define POET_OBJECT_MODEL 0
#define POET_OBJECT_PLAN 1
#define POET_OBJECT_TENSOR 2 /* a FIXED, CURRENT or INPUT tensor */
/* the arena: `read` and `write` work only between steps, `checksum` never
 * works */
#define POET_OBJECT_ARENA 3
#define POET_OBJECT_JOB 4 /* a job: training without a host */

/* the tensor is on storage when a step starts, and no operator computes it */
#define POET_FLAG_STORED 1
#define POET_FLAG_KEEP 2 /* the tensor must be on storage when a step ends */
#define POET_FLAG_ONCE 4 /* an update: never recomputed */
#define POET_FLAG_LOSS 8 /* the tensor's first float is the step's loss */
/* the tensor, which is CURRENT or NEXT, shares its block with others */
#define POET_FLAG_SHARED 16

/* Flag of a model for boards without a card: the stored tensors are in RAM at
 * the start of a step, and the CURRENT tensors at its end too. */
#define POET_MODEL_IN_RAM 1

/* The model part consists of one poet_model, then a poet_tensor for each
 * tensor, then a poet_op for each tensor that is not stored, then `cut_count`
 * poet_cut. The stored tensors come first. Each later tensor i (i >=
 * stored_count) is computed by operator i - stored_count. */
struct poet_model {
  uint32_t magic;
  uint32_t crc; /* CRC-32 of the model part after this field */
  uint16_t version;
  uint16_t tensor_count;
  uint16_t stored_count;
  uint16_t keep_count;
  uint32_t fingerprint;
  /* distance, in blocks, from a tensor's slot to its next slot */
  uint32_t slot_stride;
  uint32_t data_blocks; /* size of the data area */
  uint16_t cut_count;
  uint16_t flags; /* 0, or POET_MODEL_IN_RAM */
};
POET_LAYOUT(poet_model, 32);

struct poet_tensor {
  uint32_t size_bytes;
  /* first block of the tensor, counted from the start of the data area */
  uint32_t block;
  uint8_t place;
  uint8_t flags;
  union {
    uint16_t
        cut; /* 0: the tensor is one piece; else record cut - 1 of poet_cut */
    uint16_t at; /* POET_FLAG_SHARED: its first byte in the block */
  };
};
POET_LAYOUT(poet_tensor, 12);

/* How tensors are cut into parts. Parts are in row-major order, and the
 * elements of a part too. The last part along an axis may be smaller than the
 * others. */
struct poet_cut {
  uint32_t
      unit_bytes;   /* bytes of the elements that all share the three indices */
  uint16_t size[3]; /* indices along each axis, the outermost axis first */
  uint16_t part[3]; /* indices of a part along each axis */
  uint16_t piece_parts; /* parts of a piece; the last piece may have fewer */
  uint16_t zero;
};
POET_LAYOUT(poet_cut, 20);

/* One operator. A field that a kernel does not use is 0. Flattened tensors have
 * h = w = 1; elementwise kernels handle n * c * h * w elements. */
struct poet_op {
  uint8_t kernel;
  uint8_t sink;
  uint8_t input_count;
  uint8_t variant;
  uint16_t output;
  /* input tensor whose memory the output takes over, or POET_NONE */
  uint16_t overwrites;
  uint16_t input[8];
  uint32_t n, c, h, w; /* sizes of x, the forward operator's input */
  /* sizes of y, the output of the forward operator; for slice, oh is the first
   * channel */
  uint32_t k, oh, ow;
  uint8_t kernel_h, kernel_w;
  uint8_t stride_h, stride_w;
  uint8_t pad_h, pad_w;
  uint16_t groups; /* number of groups (convolution) or of heads (attention) */
  float learning_rate;
  union {
    float momentum;    /* for the sink `momentum` */
    float beta;        /* for averages: weight of all steps before */
    float update_rate; /* for running statistics: weight of this step */
    float upper_bound; /* for clip */
  };
  float weight_decay;
  union {
    float epsilon;     /* for norms and adam_step: prevents a division by 0 */
    float probability; /* for dropout */
    /* for scale, reduce and matmul: each result is multiplied by it */
    float factor;
    float lower_bound; /* for clip */
  };
  /* for dropout: the random numbers depend on seed, step and key */
  uint32_t seed, key;
  uint32_t workspace_bytes;
};
POET_LAYOUT(poet_op, 88);

/* The plan part consists of one poet_plan_header and `bit_bytes` bytes of
 * statements. */
struct poet_plan_header {
  uint32_t magic;
  uint32_t crc;             /* CRC-32 of the plan part after this field */
  uint32_t model_crc;       /* crc field of its model part */
  uint32_t arena_bytes;     /* arena that the plan needs */
  uint32_t statement_count; /* number of statements without `end` */
  /* number of bytes of statements after this header */
  uint32_t bit_bytes;
  /* maximum number of tensors in RAM at the same time */
  uint16_t resident_max;
  uint16_t queue_max; /* maximum of unfinished transfers */
};
POET_LAYOUT(poet_plan_header, 28);

/* In a .poet file, this record and `bytes` bytes of UTF-8 JSON follow the plan
 * part. The JSON has names, initial values and the solver's claims. Neither the
 * record nor the JSON is sent to the board. A note on the card is the same
 * record, followed by compressed JSON. */
struct poet_meta {
  uint32_t magic;
  uint32_t crc; /* CRC-32 of the JSON bytes */
  uint32_t bytes;
};
POET_LAYOUT(poet_meta, 12);

/* First block of the partition. */
struct poet_store {
  uint32_t magic;
  uint16_t version;
  uint16_t zero;
  /* number of blocks that the store uses, beginning with the first block of the
   * partition */
  uint32_t total_blocks;
  uint32_t identity; /* changes with every format */
  uint32_t crc;      /* of the fields above */
};
POET_LAYOUT(poet_store, 20);

/* A committed state of the CURRENT tensors. */
struct poet_state {
  /* number of steps after which the weights have these values; 0: the host has
   * written them */
  uint32_t step;
  /* sequence number of the commit that made these slots the current ones; 0:
   * there is no such state */
  uint32_t generation;
  /* exclusive or of the CRC-32 of all trailers of CURRENT tensors */
  uint32_t digest;
  uint32_t fixed; /* `sequence` of the last commit with new FIXED tensors */
  float loss;     /* loss of step `step` */
};
POET_LAYOUT(poet_state, 20);

/* Each of the two commit blocks holds one commit record. Commits write the two
 * blocks in turn. The record with the greater sequence number is the newest
 * commit. A card wears out before the sequence number reaches 2^32. */
struct poet_commit {
  uint32_t magic;
  uint32_t sequence; /* one more than in the previous commit */
  /* CRC of the model to which the tensors belong; 0: no model */
  uint32_t model_crc;
  /* number of blocks of the model's data area; no tensor lies after this
   * area */
  uint32_t data_blocks;
  uint32_t slot;           /* which slots are current: 0 to POET_SLOTS - 1 */
  struct poet_state now;   /* state in the current slots */
  struct poet_state prior; /* state in the slots that were current before */
  uint32_t crc;            /* of the fields above */
};
POET_LAYOUT(poet_commit, 64);

/* A job for a board that trains without a host. It begins at the first erase
 * group after the data area, and poet_begin deletes it. Blocks count from the
 * job's first block:
 *
 *   0             this record, in a block of its own
 *   1             steps * batch u32: numbers of the samples, step by step
 *   sample_block  the samples: data, label, then the CRC-32 of both, with the
 *                 sample's number as its start value
 *   loss_block    poet_job_log, then one float per step
 */
struct poet_job {
  uint32_t magic;
  uint32_t first; /* committed step at which the job begins */
  uint32_t steps; /* number of steps to train */
  uint32_t model_bytes;
  uint32_t plan_bytes;
  uint32_t data_bytes; /* of one sample */
  uint32_t label_bytes;
  uint16_t data;  /* tensor that takes a batch of data */
  uint16_t label; /* number of the tensor that takes a batch of labels */
  uint32_t batch;
  uint32_t sample_block;
  uint32_t loss_block;
  uint32_t order_crc; /* CRC-32 of the sample numbers of all steps */
  uint32_t crc;       /* of the fields above */
};
POET_LAYOUT(poet_job, 52);

/* The log of a job, which the board writes: the board's name when the job
 * starts, then the loss of each step before the next step begins. */
struct poet_job_log {
  /* name of the board that runs the job; zeros: no board has started it */
  char board[16];
};
POET_LAYOUT(poet_job_log, 16);

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
};
POET_LAYOUT(poet_hello, 76);

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
  /* number of steps from one read-back of trailers to the next */
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
