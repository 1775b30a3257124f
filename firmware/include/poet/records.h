/*
 * records.h - every fixed little-endian record that leaves or enters a board.
 *
 * Python reads this same file through cffi (poet_host/isa.py), which sees it
 * without lines that begin with # and without the POET_LAYOUT assertions: keep
 * it to plain structs of fixed-width fields, largest alignment 4, no padding.
 */
#ifndef POET_RECORDS_H
#define POET_RECORDS_H

#include <assert.h>
#include <stdint.h>

#define POET_LAYOUT(tag, size) static_assert(sizeof(struct tag) == size, #tag)

#define POET_NONE 0xffffu         /* no tensor */
#define POET_INPUTS 8             /* most inputs of an operator */
#define POET_BLOCK 512u           /* bytes of a storage block */
#define POET_TRAILER 8u           /* crc u32 + block u32 behind stored bytes */
#define POET_PARTITION_TYPE 0xdau /* of ours in the card's MBR */
#define POET_MODEL_MAGIC 0x4d544f50u  /* "POTM" */
#define POET_PLAN_MAGIC 0x50544f50u   /* "POTP" */
#define POET_META_MAGIC 0x4a544f50u   /* "POTJ" */
#define POET_ORIGIN_MAGIC 0x4f544f50u /* "POTO" */
#define POET_STORE_MAGIC 0x53544f50u  /* "POTS" */
#define POET_COMMIT_MAGIC 0x43544f50u /* "POTC" */
#define POET_JOB_MAGIC 0x4c544f50u    /* "POTL" */
#define POET_NOTE_MAGIC 0x4e544f50u   /* "POTN" */
#define POET_NOTE_OFFSET 393216u      /* of two notes in the model area */
#define POET_NOTE_BYTES 65536u        /* of each */
#define POET_VERSION 1

/* Where a tensor lives on storage (poet_tensor.place). */
#define POET_PLACE_NONE 0  /* never on storage */
#define POET_PLACE_PAGE 1  /* page of this step; contents mean nothing later */
#define POET_PLACE_FIXED 2 /* one slot, written by the host: frozen */
#define POET_PLACE_CURRENT 3 /* the slot of the last committed step */
#define POET_PLACE_NEXT 4    /* the other slot, current once committed */
#define POET_PLACE_INPUT 5   /* two slots, for this step and for the next one */

/* Objects of the messages write, read and checksum. */
#define POET_OBJECT_MODEL 0
#define POET_OBJECT_PLAN 1
#define POET_OBJECT_TENSOR 2 /* a FIXED, CURRENT or INPUT tensor */
#define POET_OBJECT_ARENA 3  /* RAM, between steps; it has no checksum */
#define POET_OBJECT_JOB 4    /* what a board trains alone by */

#define POET_FLAG_STORED 1 /* on storage at the start; has no operator */
#define POET_FLAG_KEEP 2   /* must be on storage when a step ends */
#define POET_FLAG_ONCE 4   /* computed once: an update */
#define POET_FLAG_LOSS 8   /* its first float is the step's loss */

/* Model part: poet_model, then tensor_count poet_tensor, then
 * tensor_count - stored_count poet_op. Stored tensors come first; tensor i
 * (i >= stored_count) is computed by operator i - stored_count. */
struct poet_model {
  uint32_t magic;
  uint32_t crc; /* CRC-32 of the model part behind this field */
  uint16_t version;
  uint16_t tensor_count;
  uint16_t stored_count;
  uint16_t keep_count;
  uint32_t fingerprint;
  uint32_t slot_stride; /* blocks from a tensor's first slot to its second */
  uint32_t data_blocks; /* blocks of the area that tensors' blocks count in */
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
  uint16_t overwrites; /* an input whose memory the output takes, or NONE */
  uint16_t input[8];
  uint32_t n, c, h, w; /* of the forward operator's input x */
  uint32_t k, oh, ow;  /* of the forward operator's output y; a slice's place */
  uint8_t kernel_h, kernel_w;
  uint8_t stride_h, stride_w;
  uint8_t pad_h, pad_w;
  uint16_t groups; /* of convolution, or the heads of attention */
  float learning_rate;
  float momentum; /* of an average, or the upper bound of clip */
  float weight_decay;
  float epsilon;      /* of a division; dropout's probability, clip's lower
                         bound, what a product or sum is multiplied by */
  uint32_t seed, key; /* dropout: generator key (seed, step, key) */
  uint32_t workspace_bytes;
};
POET_LAYOUT(poet_op, 88);

/* Plan part: poet_plan_header, then bit_bytes bytes of statements. */
struct poet_plan_header {
  uint32_t magic;
  uint32_t crc;             /* CRC-32 of the plan part behind this field */
  uint32_t model_crc;       /* crc field of the model part it belongs to */
  uint32_t arena_bytes;     /* height of the placement */
  uint32_t statement_count; /* without `end` */
  uint32_t bit_bytes;       /* bytes of statements behind this header */
  uint16_t resident_max;    /* most tensors in RAM at once */
  uint16_t queue_max;       /* most transfers queued at once */
};
POET_LAYOUT(poet_plan_header, 28);

/* Behind the plan part in a .poet file, not sent to the board: poet_meta, then
 * bytes of UTF-8 JSON (names, starting values, what the solver promised). A
 * note on the card has the same record, then bytes of compressed JSON. */
struct poet_meta {
  uint32_t magic;
  uint32_t crc; /* CRC-32 of those bytes */
  uint32_t bytes;
};
POET_LAYOUT(poet_meta, 12);

/* First block of the partition, and the two commit blocks. */
struct poet_store {
  uint32_t magic;
  uint16_t version;
  uint16_t zero;
  uint32_t total_blocks; /* of the partition */
  uint32_t identity;     /* changes with every format */
  uint32_t crc;          /* of the fields above */
};
POET_LAYOUT(poet_store, 20);

struct poet_commit {
  uint32_t magic;
  uint32_t sequence;    /* one more than the record before: the greater counts;
                           2^32 commits are more than a card survives */
  uint32_t step;        /* 0: as written by the host; N: after N steps */
  uint32_t model_crc;   /* of the model whose tensors these are, 0: none */
  uint32_t data_blocks; /* of that model: what lies behind them is unused */
  uint32_t parity;      /* which slot is current: 0 the first, 1 the second */
  float loss;           /* of that step */
  uint32_t crc;         /* of the fields above */
};
POET_LAYOUT(poet_commit, 32);

/* A job: training without a host. It begins at the first erase group after the
 * data area, with this record in a block of its own; `begin` ends it. The next
 * block begins steps * batch u32, the samples of each step in turn. Block
 * sample_block begins the samples: each has its data, its label and the CRC-32
 * of both, started with the sample's number. Block loss_block begins with a
 * poet_job_log, then a float for each step. Blocks count from the job's first.
 */
struct poet_job {
  uint32_t magic;
  uint32_t first; /* the committed step with which it begins */
  uint32_t steps; /* and so many follow */
  uint32_t model_bytes;
  uint32_t plan_bytes;
  uint32_t data_bytes; /* of one sample */
  uint32_t label_bytes;
  uint16_t data; /* tensors that take a batch of them */
  uint16_t label;
  uint32_t batch;
  uint32_t sample_block;
  uint32_t loss_block;
  uint32_t order_crc; /* CRC-32 of the samples of all steps */
  uint32_t crc;       /* of the fields above */
};
POET_LAYOUT(poet_job, 52);

/* What the board writes: its name when it takes the job up; the losses follow,
 * each before the next step. */
struct poet_job_log {
  char board[16]; /* zeros: no board has trained by this job */
};
POET_LAYOUT(poet_job_log, 16);

struct poet_hello {
  uint16_t version;
  int16_t storage_status; /* 0, or the error that storage gives */
  uint32_t fingerprint;
  char board[16];
  char unique_id[16];
  uint32_t arena_bytes;
  uint32_t tick_hz;
  uint32_t storage_blocks;  /* of the partition */
  uint32_t committed_step;  /* 0xffffffff: nothing committed */
  uint32_t committed_model; /* crc of the model committed, 0: none */
  uint32_t loaded_plan;     /* crc of the plan loaded, 0: none */
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
  uint32_t peak_bytes; /* what the validator found, equals arena_bytes */
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
  uint32_t asleep_ticks;   /* of the processor */
  uint32_t reading_ticks;  /* of storage: transfers, and all else */
  uint32_t writing_ticks;
  uint32_t serving_ticks; /* in which requests of the host were answered */
  /* Overhead is what no plan contains: the commit and the answers to the host.
   * So much of asleep, reading and writing is overhead. */
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
