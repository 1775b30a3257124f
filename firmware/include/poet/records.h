/*
 * records.h - every fixed little-endian record that enters or leaves a board.
 *
 * Python reads this same file through cffi (poet_host/isa.py), without the
 * lines that begin with # and without the POET_LAYOUT assertions. So use only
 * plain structs of fixed-width fields, with alignment up to 4 and no padding.
 * The members of a union are names of one field, each for different kernels.
 */
#ifndef POET_RECORDS_H
#define POET_RECORDS_H

#include <assert.h>
#include <stdint.h>

#define POET_LAYOUT(tag, size) static_assert(sizeof(struct tag) == size, #tag)

#define POET_NONE 0xffffu         /* no tensor */
#define POET_INPUTS 8             /* maximum inputs of an operator */
#define POET_BLOCK 512u           /* bytes of a storage block */
#define POET_TRAILER 8u           /* crc u32, block u32: after stored bytes */
#define POET_PARTITION_TYPE 0xdau /* of our partition, in the card's MBR */
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
#define POET_VERSION 1

/* Where a tensor lives on storage (poet_tensor.place). */
#define POET_PLACE_NONE 0    /* never on storage */
#define POET_PLACE_PAGE 1    /* page, valid only within one step */
#define POET_PLACE_FIXED 2   /* one slot, written by the host: frozen */
#define POET_PLACE_CURRENT 3 /* the slot of the last committed step */
#define POET_PLACE_NEXT 4    /* the other slot; the commit makes it current */
#define POET_PLACE_INPUT 5   /* two slots: for this step, for the next step */

/* Objects of the messages write, read and checksum. */
#define POET_OBJECT_MODEL 0
#define POET_OBJECT_PLAN 1
#define POET_OBJECT_TENSOR 2 /* a FIXED, CURRENT or INPUT tensor */
#define POET_OBJECT_ARENA 3  /* RAM, between steps; it has no checksum */
#define POET_OBJECT_JOB 4    /* job of a board that trains without a host */

#define POET_FLAG_STORED 1 /* on storage when a step starts; no operator */
#define POET_FLAG_KEEP 2   /* must be on storage when a step ends */
#define POET_FLAG_ONCE 4   /* an update: never recomputed */
#define POET_FLAG_LOSS 8   /* its first float is the loss of the step */

/* Model part: poet_model, then tensor_count poet_tensor, then
 * tensor_count - stored_count poet_op. Stored tensors come first; tensor i
 * (i >= stored_count) is computed by operator i - stored_count. */
struct poet_model {
  uint32_t magic;
  uint32_t crc; /* CRC-32 of the model part after this field */
  uint16_t version;
  uint16_t tensor_count;
  uint16_t stored_count;
  uint16_t keep_count;
  uint32_t fingerprint;
  uint32_t slot_stride; /* blocks from a tensor's first slot to its second */
  uint32_t data_blocks; /* size of the data area */
};
POET_LAYOUT(poet_model, 28);

struct poet_tensor {
  uint32_t size_bytes;
  uint32_t block; /* first block, from the start of the data area */
  uint8_t place;
  uint8_t flags;
  uint16_t zero;
};
POET_LAYOUT(poet_tensor, 12);

/* One operator. A field that a kernel does not use is 0. Flattened tensors have
 * h = w = 1; elementwise kernels handle n * c * h * w elements. */
struct poet_op {
  uint8_t kernel;
  uint8_t sink;
  uint8_t input_count;
  uint8_t variant;
  uint16_t output;
  uint16_t overwrites; /* input whose memory becomes the output's, or NONE */
  uint16_t input[8];
  uint32_t n, c, h, w; /* of the forward operator's input x */
  uint32_t k, oh, ow; /* of the forward operator's output y; slice: offset oh */
  uint8_t kernel_h, kernel_w;
  uint8_t stride_h, stride_w;
  uint8_t pad_h, pad_w;
  uint16_t groups; /* groups of a convolution, or heads of attention */
  float learning_rate;
  union {
    float momentum;    /* of the sink `momentum` */
    float beta;        /* of an average: weight of all earlier steps */
    float update_rate; /* of running statistics: weight of this step */
    float upper_bound; /* of clip */
  };
  float weight_decay;
  union {
    float epsilon;     /* avoids a division by 0: norms, adam_step */
    float probability; /* of dropout */
    float factor;      /* multiplies each result: scale, reduce, matmul */
    float lower_bound; /* of clip */
  };
  uint32_t seed, key; /* dropout: generator key (seed, step, key) */
  uint32_t workspace_bytes;
};
POET_LAYOUT(poet_op, 88);

/* Plan part: poet_plan_header, then bit_bytes bytes of statements. */
struct poet_plan_header {
  uint32_t magic;
  uint32_t crc;             /* CRC-32 of the plan part after this field */
  uint32_t model_crc;       /* crc field of its model part */
  uint32_t arena_bytes;     /* arena that the plan needs */
  uint32_t statement_count; /* number of statements without `end` */
  uint32_t bit_bytes;       /* bytes of statements after this header */
  uint16_t resident_max;    /* maximum of tensors in RAM at the same time */
  uint16_t queue_max;       /* maximum of unfinished transfers */
};
POET_LAYOUT(poet_plan_header, 28);

/* After the plan part in a .poet file, not sent to the board: poet_meta, then
 * `bytes` bytes of UTF-8 JSON (names, initial values, the solver's claims). A
 * note on the card has the same record, then compressed JSON. */
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
  uint32_t total_blocks; /* used blocks of the partition, from its first */
  uint32_t identity;     /* changes with every format */
  uint32_t crc;          /* of the fields above */
};
POET_LAYOUT(poet_store, 20);

/* Each of the two commit blocks holds one record. They are written in turn. The
 * record with the greater sequence number is the newest commit. 2^32 commits
 * exceed the life of a card. */
struct poet_commit {
  uint32_t magic;
  uint32_t sequence;    /* one more than in the record before */
  uint32_t step;        /* 0: as written by the host; N: after N steps */
  uint32_t model_crc;   /* of the model that owns the tensors, 0: none */
  uint32_t data_blocks; /* of that model; later blocks are unused */
  uint32_t parity;      /* the current slots: 0 the first, 1 the second */
  float loss;           /* of that step */
  uint32_t crc;         /* of the fields above */
};
POET_LAYOUT(poet_commit, 32);

/* A job: training without a host. It begins at the first erase group after the
 * data area, and poet_begin deletes it. Blocks count from the job's first
 * block:
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
  uint16_t label; /* tensor that takes a batch of labels */
  uint32_t batch;
  uint32_t sample_block;
  uint32_t loss_block;
  uint32_t order_crc; /* CRC-32 of the sample numbers of all steps */
  uint32_t crc;       /* of the fields above */
};
POET_LAYOUT(poet_job, 52);

/* Written by the board: its name when it starts the job, then each step's loss
 * before the next step. */
struct poet_job_log {
  char board[16]; /* zeros: no board has started this job */
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
  uint32_t storage_blocks;  /* of the partition */
  uint32_t committed_step;  /* 0xffffffff: nothing committed */
  uint32_t committed_model; /* crc of the committed model, 0: none */
  uint32_t loaded_plan;     /* crc of the loaded plan, 0: none */
  uint16_t frame_bytes;     /* largest payload of a request or reply */
  uint16_t resident_capacity;
  uint16_t tensor_capacity;
  uint16_t queue_capacity;
  uint16_t trace_capacity;
  uint16_t zero;
};
POET_LAYOUT(poet_hello, 76);

struct poet_facts {
  uint32_t statement_count;
  uint32_t peak_bytes; /* as validated; equals arena_bytes of the plan */
  uint16_t resident_max;
  uint16_t queue_max;
};
POET_LAYOUT(poet_facts, 12);

struct poet_step_result {
  uint32_t step;
  float loss;
  uint32_t ticks;          /* of the whole step, commit included */
  uint32_t commit_ticks;   /* of the commit alone */
  uint32_t compute_ticks;  /* sum over compute statements */
  uint32_t transfer_ticks; /* sum over transfers, in their own lane */
  uint32_t asleep_ticks;   /* time that the processor slept */
  uint32_t reading_ticks;  /* time that storage was read, for any purpose */
  uint32_t writing_ticks;  /* time that storage was written */
  uint32_t serving_ticks;  /* time spent on the host's requests */
  /* Overhead is work that no plan contains: the commit and answers to the host.
   * These parts of asleep, reading and writing are overhead. */
  uint32_t overhead_asleep_ticks;
  uint32_t overhead_reading_ticks;
  uint32_t overhead_writing_ticks;
  uint32_t peak_bytes; /* high-water mark of the painted arena */
  uint32_t trace_records;
};
POET_LAYOUT(poet_step_result, 60);

struct poet_trace {
  uint16_t statement; /* index in the plan */
  uint8_t kind;       /* statement code */
  uint8_t zero;
  uint32_t begin; /* ticks from the start of the step */
  uint32_t end;
};
POET_LAYOUT(poet_trace, 12);

struct poet_status {
  uint8_t running;
  uint8_t zero;
  int16_t error; /* of the last step */
  uint32_t step;
  uint32_t statement;
};
POET_LAYOUT(poet_status, 12);

#endif
