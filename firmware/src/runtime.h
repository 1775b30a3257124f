/* runtime.h - what the runtime's files tell each other. */
#ifndef POET_RUNTIME_H
#define POET_RUNTIME_H

#include "poet/isa.h"
#include "poet/poet.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records as stored");

#define POET_NO_STEP 0xffffffffu
#define POET_OUTPUT_BIT 8u /* of poet_decoder.frees */

/* Fail, and say where. */
static inline int poet_fail(struct poet *p, int error, uint32_t detail) {
  p->detail = detail;
  return error;
}

#define TRY(call)                                                              \
  do {                                                                         \
    const int error_ = (call);                                                 \
    if (error_) {                                                              \
      return error_;                                                           \
    }                                                                          \
  } while (0)

/* shape.c */
/* Bytes of operand `index` of an operator (its inputs, then its output), or 0
 * if the fields break a rule of the kernel. */
uint32_t poet_operand_bytes(const struct poet_op *op, uint32_t index);

/* progress.c */
void poet_trace(struct poet *p, uint32_t statement, uint8_t kind,
                uint32_t begin, uint32_t end);
int poet_asked_to_stop(struct poet *p);
/* Count what passed since `before` as overhead of the step. */
void poet_count_overhead(struct poet *p, const struct poet_usage *before);

/* store.c */
int poet_ready(struct poet *p);            /* mounted, or the reason why not */
bool poet_committed(const struct poet *p); /* of the loaded model */
int poet_commit(struct poet *p, struct poet_commit commit);
/* Forget the cached blocks from `block` on. */
void poet_forget(struct poet *p, uint32_t block);
/* Have a block in the cache. */
int poet_fetch(struct poet *p, uint32_t block);
/* Bytes that begin `offset` bytes behind a block of the partition. */
int poet_get(struct poet *p, uint32_t block, uint32_t offset, void *to,
             uint32_t size);
int poet_put(struct poet *p, uint32_t block, uint32_t offset, const void *from,
             uint32_t size);
int poet_copy_block(struct poet *p, uint32_t from, uint32_t to);
int poet_crc_stored(struct poet *p, uint32_t block, uint32_t offset,
                    uint32_t size, uint32_t *crc);

/* model.c */
uint32_t poet_tensor_blocks(uint32_t size_bytes);
uint32_t poet_job_block(uint32_t data_blocks); /* where a job would begin */
/* First block, in the partition, of the slot a tensor is read from or written
 * to when `parity` names the current slots. */
uint32_t poet_slot(const struct poet *p, const struct poet_tensor *tensor,
                   uint32_t parity);
uint32_t poet_parity(const struct poet *p);
int poet_read_tensor(struct poet *p, uint32_t number, struct poet_tensor *to);
int poet_read_op(struct poet *p, uint32_t output, struct poet_op *to);
int poet_fetch_op(struct poet *p, uint32_t output); /* into the cache */
int poet_check_model(struct poet *p, uint32_t model_bytes);

/* bits.c */
int poet_refuse(struct poet *p);         /* the statement being decoded */
uint32_t poet_bit_width(uint32_t count); /* bits of count - 1 */
int poet_take_bits(struct poet *p, uint32_t count, uint32_t *value);
int poet_take_gamma(struct poet *p, uint32_t *value);

/* arena.c */
/* Where bytes are that may be changed, or NULL: not all are in the arena. */
uint8_t *poet_arena(struct poet *p, uint32_t offset, uint32_t size);
bool poet_is_resident(const struct poet *p, uint32_t tensor);
/* Index of a tensor in the list, or resident_count. */
uint32_t poet_find(const struct poet *p, uint32_t tensor);
/* Read a position in the list. */
int poet_take_resident(struct poet *p, uint32_t *index);
/* Read a place and put the tensor, or workspace, there. */
int poet_place(struct poet *p, uint16_t tensor, uint32_t size_bytes,
               uint32_t *offset);
void poet_drop(struct poet *p, uint32_t index);

struct poet_statement {
  uint32_t index;
  uint8_t code;
  uint8_t zero;
  uint16_t tensor;
  uint32_t offset; /* of the tensor in RAM */
  uint32_t size_bytes;
  uint32_t workspace;          /* its offset */
  uint32_t input[POET_INPUTS]; /* offsets */
  struct poet_tensor record;   /* of `tensor`, where it is transferred */
  bool loss;                   /* the output is the step's loss */
};

/* pager.c */
int poet_page(struct poet *p, const struct poet_statement *statement);
void poet_submit(struct poet *p, struct poet_transfer *transfer);
int poet_judge(struct poet *p, struct poet_transfer *transfer);
int poet_retire(struct poet *p, uint32_t until); /* so many have ended */
void poet_drain(struct poet *p);                 /* all, whatever comes of it */
struct poet_transfer *poet_queue_slot(struct poet *p, uint32_t number);

/* decoder.c */
void poet_decode_start(struct poet *p);
int poet_decode(struct poet *p, struct poet_statement *statement);

#endif
