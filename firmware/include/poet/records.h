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

#include <stdint.h>

/* Does not compile if a record has another size. */
#define POET_LAYOUT(tag, size)                                                 \
  typedef char poet_layout_##tag[sizeof(struct tag) == (size) ? 1 : -1]

#ifdef __GNUC__ /* C99 has no unions without a name, but these compilers do */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#endif

#define POET_NONE 0xffffu    /* no tensor */
#define POET_INPUTS 8        /* maximum inputs of an operator */
#define POET_CUT_AXES 3u     /* axes along which a tensor can be cut */
#define POET_LOOPS 7         /* maximum loops of a nest */
#define POET_NEST_BYTES 372u /* of a nest's state, without its operands */
#define POET_NEST_OPERAND_BYTES 116u /* of the state of each operand */
#define POET_BLOCK 512u              /* bytes of a storage block */
#define POET_TRAILER 8u        /* bytes of a trailer: CRC u32, owner u32 */
#define POET_SHARED_BYTES 248u /* largest tensor that shares a block */
/* number of slots of a CURRENT tensor; one more with POET_MODEL_FOUR_SLOTS */
#define POET_SLOTS 3u
#define POET_READBACK_PERCENT 1u /* of a step, for reading trailers back */
#define POET_UNIT_BLOCKS 8192u   /* 4 MiB: the allocation unit of most cards */
#define POET_ERASE_BLOCKS 8u /* a multiple of the erase unit of every chip */
#define POET_PARTITION_TYPE 0xdau      /* type of poet's partition in an MBR */
#define POET_MODEL_MAGIC 0x4d544f50u   /* "POTM" */
#define POET_PLAN_MAGIC 0x50544f50u    /* "POTP" */
#define POET_FILE_MAGIC 0x54454f50u    /* "POET" */
#define POET_STORE_MAGIC 0x53544f50u   /* "POTS" */
#define POET_DEVICE_MAGIC 0x44544f50u  /* "POTD" */
#define POET_COMMIT_MAGIC 0x43544f50u  /* "POTC" */
#define POET_JOB_MAGIC 0x4c544f50u     /* "POTL" */
#define POET_NOTE_MAGIC 0x4e544f50u    /* "POTN" */
#define POET_SAMPLES_MAGIC 0x52544f50u /* "POTR" */
#define POET_SAMPLE_MAGIC 0x58544f50u  /* "POTX" */
#define POET_NOTE_OFFSET 393216u       /* of the two notes in the model area */
#define POET_NOTE_BYTES 65536u         /* of each note */
#define POET_VERSION 3

/* Values of poet_tensor.place: where a tensor lies on storage. */
#define POET_PLACE_NONE 0 /* never on storage */
#define POET_PLACE_PAGE 1 /* page, valid only within one step */
/* frozen tensor with one slot, which the host writes */
#define POET_PLACE_FIXED 2
/* tensor with several slots; its value is in the slot that is current */
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
/* for a host: the partition, whatever it holds, as a learner's storage */
#define POET_OBJECT_PARTITION 5

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
/* Flag of a model whose steps may write new values of CURRENT tensors to
 * storage without a commit */
#define POET_MODEL_FOUR_SLOTS 2
/* Flag of a forward program: it computes outputs with the weights of another
 * model, and renews none */
#define POET_MODEL_FORWARD 4

/* The model part consists of one poet_model, then a poet_tensor for each
 * tensor, then a poet_op for each tensor that is not stored, then `cut_count`
 * poet_cut and `rate_count` poet_rate; in a forward program, then the crc of
 * the model that trains its weights. The stored tensors come first. Each later
 * tensor i (i >= stored_count) is computed by operator i - stored_count. */
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
  uint8_t flags; /* POET_MODEL_* */
  uint8_t rate_count;
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

/* Values of poet_rate.curve */
#define POET_CURVE_CONSTANT 0
#define POET_CURVE_LINEAR 1
#define POET_CURVE_COSINE 2 /* half a wave */

/* The factor of all learning rates for `steps` steps. It goes along a curve
 * from `start`, in the first of these steps, to `end`, in the step after the
 * last one. The first record begins with step 1, and each other one where the
 * record before ends. The last one has 2^32 - 1 steps. */
struct poet_rate {
  uint32_t steps;
  float start, end;
  uint32_t curve; /* POET_CURVE_* */
};
POET_LAYOUT(poet_rate, 16);

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
  union {
    uint32_t seed; /* for dropout: the random numbers depend on it */
    /* for an update: 0, or the number of steps that accumulate gradients. The
     * sink accumulate begins with 0 in the first of them. All others run in the
     * last one only, and what they overwrite stays in the steps before. */
    uint32_t period;
  };
  union {
    uint32_t key; /* for dropout: random numbers depend on seed, step, key */
    /* for embedding_grad: 0, or the number, from 1, of the row whose gradient
     * is 0, because its token only fills up samples */
    uint32_t padding;
  };
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
  /* a step commits if its number is a multiple of it; at least 1 */
  uint16_t commit_every;
  uint16_t home_count; /* number of stored tensors in RAM at the start */
};
POET_LAYOUT(poet_plan_header, 32);

/* A .poet file begins with this record. Its parts follow. Neither this record
 * nor that of a part is sent to the board. */
struct poet_file {
  uint32_t magic;
  uint32_t version;
};
POET_LAYOUT(poet_file, 8);

/* Numbers of the parts of a .poet file. */
#define POET_PART_MODEL 1
#define POET_PART_PLAN 2
#define POET_PART_META 3    /* JSON: names, first values, the solver's claims */
#define POET_PART_ORIGIN 4  /* the ONNX file of the model */
#define POET_PART_FORWARD 5 /* both parts of a forward program */
/* a reader that does not know this part refuses the file; else it leaves the
 * part out */
#define POET_PART_NEEDED 1

/* One part: this record, then `bytes` bytes. */
struct poet_part {
  uint16_t number; /* POET_PART_*; parts are in ascending order */
  uint16_t flags;  /* 0, or POET_PART_NEEDED */
  uint32_t bytes;
  uint32_t crc; /* CRC-32 of the bytes */
};
POET_LAYOUT(poet_part, 12);

/* A note on a card: this record, followed by `bytes` bytes of compressed
 * JSON. */
struct poet_note {
  uint32_t magic;
  uint32_t crc; /* CRC-32 of the bytes */
  uint32_t bytes;
};
POET_LAYOUT(poet_note, 12);

/* First block of the partition. */
struct poet_store {
  uint32_t magic; /* POET_DEVICE_MAGIC: the board has laid out the storage */
  uint16_t version;
  /* for such storage: blocks of a unit, in which no two objects lie; else 0 */
  uint16_t unit_blocks;
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
  /* exclusive or of the CRC-32 of all trailers of renewed CURRENT tensors */
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
  uint32_t sequence; /* greater than in the previous commit */
  /* CRC of the model to which the tensors belong; 0: no model */
  uint32_t model_crc;
  /* number of blocks of the model's data area; no tensor lies after this
   * area */
  uint32_t data_blocks;
  uint8_t slot;       /* which slots are current */
  uint8_t prior_slot; /* which slots were current before */
  /* most steps that may have followed this commit before the next one; 0: 1 */
  uint16_t every;
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

/* The samples that a device keeps begin with two of these records, each in an
 * erase unit of its own. The one with the greater sequence number is valid. */
struct poet_samples_record {
  uint32_t magic;
  uint32_t sequence;
  uint32_t epoch;        /* samples of other epochs are forgotten */
  uint32_t sample_bytes; /* plus 2^31 if its values are uint8, not int8 */
  uint16_t classes;
  uint16_t slots; /* samples of a class that a step can draw */
  /* generation of the commit whose weights are to be those of the package */
  uint32_t reset;
  uint32_t crc; /* of the fields above; see poet_sample.crc */
};
POET_LAYOUT(poet_samples_record, 28);

/* In front of the bytes of a sample. */
struct poet_sample {
  uint32_t magic;
  uint32_t epoch;
  uint32_t number; /* counts from 0 in each class */
  uint32_t from;   /* the first step that may draw the sample */
  uint32_t label;
  /* of the fields above and the sample; it continues the CRC of the store's
   * identity, which continues the model's crc */
  uint32_t crc;
};
POET_LAYOUT(poet_sample, 24);

#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

#include "answers.h"

#endif
