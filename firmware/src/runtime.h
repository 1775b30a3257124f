/*
 * runtime.h - functions that the runtime's files share, lowest layer first.
 *
 * A file uses only files of lower layers. Below the files in this list are crc,
 * cobs, isa and shape; those of storage.h come after progress. Above them are
 * the files in plan.h, and then load, interpreter, objects, begin, job, probe
 * and server, in that order
 * (tests/firmware/test_layers.py). The functions of these files are in
 * poet.h and server.h.
 *
 * All state is in struct poet (poet.h), which the caller owns. A function that
 * returns int returns 0 or a negative POET_ERROR_*.
 */
#ifndef POET_RUNTIME_H
#define POET_RUNTIME_H

#include "poet/isa.h"
#include "storage.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records as stored");

#define POET_NO_STEP 0xffffffffu
#define POET_OPERAND_AXES 4u
/* index of the output's bit in poet_decoder.frees */
#define POET_OUTPUT_BIT 8u

/* Set p->detail to the number that locates the error, and return `error`. */
static inline POET_CHECKED int poet_fail(struct poet *p, int error,
                                         uint32_t detail) {
  p->detail = detail;
  return error;
}

/* True: the loaded schedule needs no storage during a step. */
static inline bool poet_in_ram(const struct poet *p) {
  return (p->model.flags & POET_MODEL_IN_RAM) != 0;
}

/* True: the schedule renews no weights. */
static inline bool poet_is_forward(const struct poet *p) {
  return (p->model.flags & POET_MODEL_FORWARD) != 0;
}

/* Return the number of slots of a CURRENT tensor. */
static inline uint32_t poet_slots(const struct poet_model *model) {
  return POET_SLOTS + (model->flags & POET_MODEL_FOUR_SLOTS ? 1u : 0);
}

/* Return how far the number of the last of `steps` steps after a commit (0: of
 * the first) lies above the sequence number of that commit. */
static inline uint32_t poet_number_after(uint32_t steps) {
  return steps ? 2 * steps - 1 : 1;
}

/* True: CURRENT or FIXED tensor was written since the last poet_begin. */
static inline bool poet_is_staged(const struct poet *p, uint32_t tensor) {
  return p->staging && (p->memory.bitmap[tensor / 32] >> (tensor & 31) & 1);
}

/* The next steps must renew all rows of tables (rows.c). */
static inline void poet_forget_rows(const struct poet *p) {
#if POET_KEEPS_ROWS
  if (p->memory.rows) {
    p->memory.rows->are_known = false;
  }
#else
  (void)p;
#endif
}

#define TRY(call)                                                              \
  do {                                                                         \
    const int error_ = (call);                                                 \
    if (error_) {                                                              \
      return error_;                                                           \
    }                                                                          \
  } while (0)

/* ---- shape.c ---- */

/* Return the number of bytes of operand `index` of an operator: first its
 * inputs, then its output. Return 0 if the fields break a rule of the
 * kernel. */
uint32_t poet_operand_bytes(const struct poet_op *op, uint32_t index);

/* The axes along which operators can be cut: the passes of a sum with several
 * passes, then fields of struct poet_op. Terms of sums are in this order. */
enum poet_axis {
  POET_AXIS_pass,
  POET_AXIS_n,
  POET_AXIS_c,
  POET_AXIS_h,
  POET_AXIS_w,
  POET_AXIS_k,
  POET_AXIS_oh,
  POET_AXIS_groups,
  POET_AXES
};

/* The axes of an operand, the outermost first. */
struct poet_axes {
  uint32_t size[4];
  uint8_t axis[4]; /* the operator's axis; POET_AXES: it cannot be cut */
};

/* Functions for an operator whose operands have a size. */
uint32_t poet_axis_size(const struct poet_op *op, uint32_t axis);
/* Let the operator have only `size` indices of an axis, which can be cut. */
void poet_cut_axis(struct poet_op *op, uint32_t axis, uint32_t size);
/* Return bits of the axes that can be cut: those that a sum goes over, in the
 * order of the bits, or the others. */
uint32_t poet_summed_axes(const struct poet_op *op);
uint32_t poet_free_axes(const struct poet_op *op);
/* Return 1 if axis 2 of the operand has the rows that share a window with
 * indices of its axis; 2 if it has those that share a window with such rows of
 * another operand; else 0. */
uint8_t poet_operand_axes(const struct poet_op *op, uint32_t index,
                          struct poet_axes *to);
bool poet_is_convolution(const struct poet_op *op);
/* True: a convolution or pooling, whose windows slide over the rows. */
bool poet_has_windows(const struct poet_op *op);
/* True: the output cannot lie elsewhere than the input that it overwrites. */
bool poet_must_overwrite(const struct poet_op *op);
/* True: the output may overwrite an input. */
bool poet_may_overwrite(const struct poet_op *op, uint32_t input);

/* ---- progress.c ---- */

/* Record a statement or transfer, if it is one of those that the host wants to
 * trace. `begin` and `end` are ticks. */
void poet_trace(struct poet *p, uint32_t statement, uint8_t kind,
                uint32_t begin, uint32_t end);
/* Return true if all floats of a tensor are finite. */
bool poet_is_finite(const uint8_t *at, uint32_t size_bytes);
/* Call poet.poll, unless it is NULL. Return a number other than 0 if the step
 * must stop. */
int poet_asked_to_stop(struct poet *p);
/* Report to the port that the work goes on. */
void poet_alive(const struct poet *p);
/* Add the time and the port's usage since the last call to the result. */
void poet_count_time(struct poet *p, uint32_t now);
/* Add a computation to the result. Call poet_count_time before ticks wrap
 * around. */
void poet_count_compute(struct poet *p, uint32_t begin, uint32_t end);
/* Add the difference between the port's usage now and `before` to the overhead
 * of the step. */
void poet_count_overhead(struct poet *p, const struct poet_usage *before);
/* Forget the live weights. The next step restores those of the newest
 * commit. */
void poet_drop_steps(struct poet *p);
#if POET_LIBRARY
/* Return false if another struct poet was initialised later with the same
 * cache. It would find blocks of other storage there. */
bool poet_owns_cache(const struct poet *p);
#else
#define poet_owns_cache(p) true /* there is no other one */
#endif
/* Return the queue entry for transfer `number` of the pager or the decoder. */
struct poet_transfer *poet_queue_slot(struct poet *p, uint32_t number);
/* Wait until all submitted transfers have ended; ignore their errors. */
void poet_drain(struct poet *p);
/* Paint all bytes of the arena that hold no tensor. */
void poet_paint(struct poet *p);
/* Return the number of arena bytes up to the highest one written since then. */
uint32_t poet_high_water(const struct poet *p);
/* Note that the arena will be written, apart from a step. */
void poet_use_arena(struct poet *p);
void poet_clear_bitmap(struct poet *p);

/* ---- pieces.c ---- */

static inline uint32_t poet_divided_up(uint32_t value, uint32_t by) {
  return value / by + (value % by != 0);
}

enum { POET_IN_BLOCK = POET_BLOCK / POET_TRAILER }; /* trailers of a block */

/* How a tensor is cut. */
struct poet_pieces {
  struct poet_cut cut;
  uint32_t count;
  uint32_t stride_blocks; /* from the start of a piece to that of the next */
  uint32_t trailer_block; /* first block of trailers, if there are several */
  uint32_t blocks;        /* of a slot: data and trailers */
  bool shared;            /* the block holds other tensors too */
  uint16_t at;            /* first byte of the data in such a block; else 0 */
};

/* A piece, and where it lies on storage. */
struct poet_piece {
  uint32_t number;
  uint32_t offset; /* of its first byte in the tensor */
  uint32_t size_bytes;
  uint32_t block; /* its first block */
  uint32_t at;    /* its first byte in that block */
  uint32_t trailer_block;
  uint32_t trailer_offset; /* in that block */
  uint32_t owner;          /* second word of its trailer */
  bool apart;  /* the trailer is not in the last block of the piece's data */
  bool shared; /* the block holds other tensors too */
};

/* Return the number of blocks of a piece that has its trailer in the last
 * one. */
uint32_t poet_tensor_blocks(uint32_t size_bytes);
/* Return the offset in the model part of the record of a tensor's cut, or 0 if
 * it has none. */
static inline uint32_t poet_cut_offset(const struct poet_model *model,
                                       const struct poet_tensor *tensor) {
  return (tensor->flags & POET_FLAG_SHARED) || !tensor->cut ||
                 tensor->cut > model->cut_count
             ? 0
             : (uint32_t)(sizeof *model + model->tensor_count * sizeof *tensor +
                          (model->tensor_count - model->stored_count) *
                              sizeof(struct poet_op) +
                          (tensor->cut - 1) * sizeof(struct poet_cut));
}
/* Fill in `pieces`, of which `cut` is set if the tensor has one. bad_table: a
 * slot would not lie in the data area, or parts not in the tensor. */
POET_CHECKED int poet_measure(const struct poet_model *model,
                              const struct poet_tensor *tensor,
                              struct poet_pieces *pieces);
/* True: the parts of a tensor in order are the tensor in row-major order. */
bool poet_is_row_major(const struct poet_cut *cut);
/* Return the number of the piece that contains byte `offset`. */
uint32_t poet_piece_at(const struct poet_pieces *pieces, uint32_t offset);
/* Fill in all fields except `owner`. Blocks count from the start of the
 * slot. */
void poet_piece_in_slot(const struct poet_pieces *pieces, uint32_t number,
                        struct poet_piece *piece);

/* ---- parts.c: `block` is POET_MODEL_BLOCK or POET_PLAN_BLOCK ---- */

/* Read the record at the start of a part, before poet_copy_part. */
#if POET_LIBRARY
POET_CHECKED int poet_get_head(struct poet *p, uint32_t block, void *to,
                               uint32_t size);
#else
static inline POET_CHECKED int poet_get_head(struct poet *p, uint32_t block,
                                             void *to, uint32_t size) {
  return poet_get(p, block, 0, to, size);
}
#endif
/* Copy a part of the schedule of `size` bytes. `head`, the record at its start,
 * was read before, into model or plan. bad_crc: the part differs from its CRC
 * or from `head`. */
POET_CHECKED int poet_copy_part(struct poet *p, uint32_t block, uint32_t size,
                                const void *head, uint32_t head_bytes);
/* Read bytes of a part that was copied: they are those that were copied, or
 * there is an error. With `to` NULL, only read them into the cache. */
POET_CHECKED int poet_get_part(struct poet *p, uint32_t block, uint32_t offset,
                               void *to, uint32_t size);

/* ---- model.c ---- */

/* Return the first block of a job after a data area of `data_blocks` blocks. */
uint32_t poet_job_block(uint32_t data_blocks);
POET_CHECKED int poet_read_tensor(struct poet *p, uint32_t number,
                                  struct poet_tensor *to);
/* Read and check the record of the operator that computes tensor `output`. */
POET_CHECKED int poet_read_op(struct poet *p, uint32_t output,
                              struct poet_op *to);
/* Set `factor` to that of a step. poet_read_op multiplies learning rates by it,
 * if the model has poet_rate records. */
POET_CHECKED int poet_set_factor(struct poet *p, uint32_t step);
/* Return whether an operator runs in a step; see `period` in records.h. `step`
 * becomes the number that the kernel gets: updates count updates. If
 * accumulated gradients begin with 0, change the operator's sink. */
bool poet_is_due(struct poet_op *op, uint32_t *step);
/* Read the record of the operator that computes tensor `output` into the
 * cache. */
POET_CHECKED int poet_fetch_op(struct poet *p, uint32_t output);
POET_CHECKED int poet_read_pieces(struct poet *p,
                                  const struct poet_tensor *tensor,
                                  struct poet_pieces *pieces);
/* Validate the model part, and set model, kept_at_start and loss. */
POET_CHECKED int poet_check_model(struct poet *p, uint32_t model_bytes);

/* An object that a host reads or writes, and where it lies. */
struct poet_object {
  uint32_t block; /* in the partition */
  uint32_t size_bytes;
  struct poet_tensor tensor; /* its record; size 0: not a tensor */
  bool next;                 /* its next slot */
  uint8_t *ram; /* its home, which then holds it; NULL: it is on storage */
};

/* ---- slots.c: `next` means the slot that the next step writes. An INPUT
 * tensor has its slot for the step after the last one, which may be running,
 * with 0, and for later steps: for the first with 1, for the second with 2 ----
 */

/* Return the number of steps since the newest commit whose results are live; 0
 * without storage. */
uint32_t poet_uncommitted(const struct poet *p);
/* Return the last step whose results are live or committed, or POET_NO_STEP. */
uint32_t poet_last_step(const struct poet *p);
/* First block, in the partition, of a tensor's slot. */
uint32_t poet_slot(const struct poet *p, const struct poet_tensor *tensor,
                   uint32_t next);
uint32_t poet_next_slot(const struct poet *p);
/* Find a piece of this slot. Blocks count from the start of the partition. */
void poet_piece(const struct poet *p, const struct poet_tensor *tensor,
                const struct poet_pieces *pieces, uint32_t number,
                uint32_t next, struct poet_piece *piece);
POET_CHECKED int poet_read_trailer(struct poet *p,
                                   const struct poet_piece *piece,
                                   uint32_t trailer[2]);
/* Compare the bytes of a slot with its trailer; page_damaged if they differ. */
POET_CHECKED int poet_verify(struct poet *p, uint32_t number,
                             const struct poet_tensor *tensor, bool next);
/* The same with blocks that the cache may hold already; or with `bytes`, which
 * were read from the slot. The caller sets `detail` to the tensor's number. */
POET_CHECKED int poet_compare(struct poet *p, const struct poet_tensor *tensor,
                              bool next, const uint8_t *bytes);
/* Write bytes of a piece from byte `offset` of the piece on, and its trailer.
 * Blocks that this fills in part are written by poet_settle at the latest. */
POET_CHECKED int poet_fill(struct poet *p, const struct poet_piece *piece,
                           uint32_t offset, const void *from, uint32_t size);
POET_CHECKED int poet_seal(struct poet *p, const struct poet_piece *piece,
                           uint32_t crc);
/* Compare the trailers of tensor `number`, as they are on storage, with those
 * that poet_write_pieces has written; page_damaged if they differ. */
POET_CHECKED int poet_check_arrival(struct poet *p,
                                    const struct poet_object *object,
                                    uint16_t number);
/* Digest of the trailers of all CURRENT tensors, as they are on storage. */
POET_CHECKED int poet_stored_digest(struct poet *p, bool next,
                                    uint32_t *digest);
/* Make the prior slots the current ones, if they are whole. */
POET_CHECKED int poet_roll_back(struct poet *p);
/* Replace the newest commit, if it belongs to another model, before slots of
 * that model are overwritten. */
POET_CHECKED int poet_replace_commit(struct poet *p);
/* Give the next step a sequence number under which nothing was written. */
POET_CHECKED int poet_renumber(struct poet *p);

/* ---- tensors.c ---- */

/* Expect bytes of tensor `number`. out_of_order: bytes before these have not
 * arrived; write the tensor again from its start. */
POET_CHECKED int poet_expect(struct poet *p, const struct poet_object *object,
                             uint16_t number, uint32_t offset, uint32_t size);
/* Write bytes of tensor `number`, as poet_expect expects them. The last byte of
 * a piece writes its trailer. A request whose bytes have arrived already does
 * nothing. */
POET_CHECKED int poet_write_pieces(struct poet *p,
                                   const struct poet_object *object,
                                   uint16_t number, uint32_t offset,
                                   const uint8_t *from, uint32_t size);
/* Use bytes of a tensor: copy them if `to` is not NULL, and add them to the CRC
 * if `crc` is not NULL. */
POET_CHECKED int poet_get_pieces(struct poet *p,
                                 const struct poet_object *object,
                                 uint32_t offset, uint8_t *to, uint32_t size,
                                 uint32_t *crc);
/* Copy a slot to slot `next`, with the generation of that slot. */
POET_CHECKED int poet_carry(struct poet *p, uint32_t number,
                            const struct poet_tensor *tensor, uint32_t next);

/* ---- bits.c ---- */

/* Return the error bad_plan. Set `detail` to the index of the statement that is
 * being decoded. */
POET_CHECKED int poet_refuse(struct poet *p);
/* Return the number of bits that a number below `count` needs. */
uint32_t poet_bit_width(uint32_t count);
/* poet_take_bits reads `count` bits, at most 32. poet_take_gamma reads an Elias
 * gamma code and subtracts 1. */
POET_CHECKED int poet_take_bits(struct poet *p, uint32_t count,
                                uint32_t *value);
POET_CHECKED int poet_take_gamma(struct poet *p, uint32_t *value);

/* ---- arena.c ---- */

/* Return a pointer to arena bytes that the caller may change, or NULL if any of
 * these bytes lies outside of the arena. */
uint8_t *poet_arena(struct poet *p, uint32_t offset, uint32_t size);
bool poet_is_resident(const struct poet *p, uint32_t tensor);
/* Return the index of a tensor in the list of residents, or resident_count if
 * the tensor is not in the list. */
uint32_t poet_find(const struct poet *p, uint32_t tensor);
/* Read an index of the list of residents from the plan. */
POET_CHECKED int poet_take_resident(struct poet *p, uint32_t *index);
/* Read an arena offset that is written as a number. */
POET_CHECKED int poet_take_offset(struct poet *p, uint32_t *offset);
/* Read the arena offset of a tensor or workspace from the plan. */
POET_CHECKED int poet_take_place(struct poet *p, uint32_t size_bytes,
                                 uint32_t *offset);
/* Add a range to the list of residents. Refuse one that is not free. */
POET_CHECKED int poet_insert(struct poet *p, uint16_t tensor, uint32_t offset,
                             uint32_t size_bytes);
/* Do both, and store the offset in `offset`. */
POET_CHECKED int poet_place(struct poet *p, uint16_t tensor,
                            uint32_t size_bytes, uint32_t *offset);
/* Remove entry `index` from the list of residents. */
void poet_drop(struct poet *p, uint32_t index);

#endif
