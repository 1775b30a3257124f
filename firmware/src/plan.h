/*
 * plan.h - functions that decode and execute the statements of a plan, lowest
 * layer first. The files in runtime.h are lower.
 */
#ifndef POET_PLAN_H
#define POET_PLAN_H

#include "runtime.h"

/* ---- nest_shape.c ---- */

#define POET_NO_OPERAND 0xffu
#define POET_FIRST_CELL 0x80u /* bit of poet_walker.moved and of `loops` */

/* The buffers of an operand. */
struct poet_ring {
  uint8_t slots; /* slabs in RAM; 0: the operand is whole in RAM */
  uint8_t depth; /* number of loops that fix a slab */
};

/* A nest as the plan describes it. */
struct poet_nest {
  uint8_t loops;      /* their number */
  uint8_t sums_depth; /* number of loops outside of those over sums */
  uint8_t over; /* index of the input that is overwritten, or NO_OPERAND */
  /* 1: a pair, which also computes the input gradient, its last operand */
  uint8_t pair;
  /* 1: batchnorm_stats follows, on each slab of the output that is complete */
  uint8_t statistics;
  uint8_t axis[POET_LOOPS]; /* of each loop, the outermost first */
  uint32_t step[POET_LOOPS];
  /* of the inputs, then the output, then the input gradient of a pair */
  struct poet_ring ring[POET_INPUTS + 2];
};

/* An operand of a nest. While the nest runs, it lies in the workspace. */
struct poet_nest_operand {
  struct poet_tensor tensor;
  struct poet_pieces pieces;
  struct poet_axes axes;
  uint32_t part[4]; /* indices of a part along each axis */
  uint32_t offset;  /* in the arena: of the ring, or of the whole operand */
  uint32_t slab_bytes;
  /* of each slot: number of the last transfer of its slab */
  uint32_t moved[2];
  uint16_t number; /* of the tensor */
  struct poet_ring ring;
  uint8_t loops;  /* bits of the loops that change the slab; FIRST_CELL */
  bool dense;     /* a slab in the order of its parts is row-major */
  uint8_t filled; /* slots whose slab was asked for and not given back */
  uint8_t used;   /* slot in use */
  uint8_t asked;  /* slot to ask for next */
  uint8_t window; /* see poet_operand_axes */
  uint8_t zero[2];
};
_Static_assert(sizeof(struct poet_nest_operand) == POET_NEST_OPERAND_BYTES,
               "as in FORMAT.md");

/* Return true for a layer that walks along time: the axis n. */
static inline bool poet_has_steps(const struct poet_op *op) {
  return op->kernel >= POET_KERNEL_gru && op->kernel <= POET_KERNEL_lstm_grad;
}

/* Return true if it walks from the last step to the first one, for the kernels
 * gru, gru_grad, lstm and lstm_grad in this order. */
static inline bool poet_walks_down(const struct poet_op *op) {
  return poet_has_steps(op) &&
         ((op->groups ^ (op->kernel - POET_KERNEL_gru)) & 1);
}

/* Return the bytes that a part of a walk keeps; `by_rows`: with sums. */
static inline uint64_t poet_kept_bytes(const struct poet_op *op, bool by_rows) {
  const uint32_t sums = op->k + op->w;
  const uint32_t columns =
      (op->kernel - POET_KERNEL_gru) & 1 ? sums : (op->h - 1) * op->w;
  return (uint64_t)4 * op->c * (columns + (by_rows ? sums : 0));
}

/* Read a nest of p->op, and check the laws that depend on no tensor. The fields
 * `pair` and `statistics` are set. */
POET_CHECKED int poet_take_nest(struct poet *p, struct poet_nest *nest);
/* Return the index of the last operand of a nest of p->op. */
uint32_t poet_last_operand(const struct poet *p, const struct poet_nest *nest);
/* Return the bytes of the input gradient of a pair, or of statistics. */
uint32_t poet_other_bytes(const struct poet *p, const struct poet_nest *nest);
/* Return the step of the innermost of the first loops along an axis, or 0. */
uint32_t poet_nest_step(const struct poet_nest *nest, uint32_t axis,
                        uint32_t depth);
/* Read an operand of p->op, and check the laws that depend on it. */
POET_CHECKED int poet_nest_operand(struct poet *p, const struct poet_nest *nest,
                                   uint32_t i, struct poet_nest_operand *o);
/* Return the largest extent that the first loops leave of an operand's axis. */
uint32_t poet_extent(const struct poet_op *op, const struct poet_nest *nest,
                     const struct poet_nest_operand *o, uint32_t j,
                     uint32_t depth);
/* Return whether parts of operand `i` need not be dense: a range along the
 * second axis, for each index of the first one. */
bool poet_has_rows(const struct poet_op *op, const struct poet_nest *nest,
                   uint32_t i);
/* The same for rows of several channels: a range along the third axis, for each
 * index of the second one. */
bool poet_has_planes(const struct poet_op *op, uint32_t i);
/* Return the bytes of what the first loops leave at most. */
uint32_t poet_slab_bytes(const struct poet_op *op, const struct poet_nest *nest,
                         const struct poet_nest_operand *o, uint32_t depth);
/* Return the indices of a piece along an axis. */
uint32_t poet_piece_extent(const struct poet_nest_operand *o, uint32_t j);
/* Check all operands of p->op, and add up the bytes of the workspace. */
POET_CHECKED int poet_nest_bytes(struct poet *p, const struct poet_nest *nest,
                                 uint32_t *bytes);

/* ---- planned.c ---- */

/* Only the stored tensors are on storage. */
void poet_begin_storage(struct poet *p);
bool poet_on_storage(const struct poet *p, uint32_t tensor);
/* `flags` are those of the tensor's record. */
void poet_put_on_storage(struct poet *p, uint32_t tensor, uint8_t flags);
void poet_take_from_storage(struct poet *p, uint32_t tensor);
/* Check that the model has a slot to which a step may write this tensor. */
POET_CHECKED int poet_check_slots(struct poet *p,
                                  const struct poet_tensor *record);
/* Return true if a transfer of the tensor is unfinished. With `arrivals`, only
 * transfers into RAM count: a tensor may be read in RAM while it is still being
 * written to storage. */
bool poet_in_flight(struct poet *p, uint32_t tensor, bool arrivals);
/* Count a transfer. */
POET_CHECKED int poet_enqueue(struct poet *p, uint16_t tensor, bool write);

/* A decoded statement. The field `code` determines which other fields are
 * valid. */
struct poet_statement {
  uint32_t index; /* index of the statement in the plan */
  uint8_t code;   /* POET_STATEMENT_* */
  uint8_t zero;
  /* the tensor that is computed, transferred or freed */
  uint16_t tensor;
  uint32_t offset;     /* arena offset of `tensor` */
  uint32_t size_bytes; /* size of `tensor` */
  uint32_t workspace;  /* arena offset of the workspace */
  /* arena offsets of the inputs and, with the index after that of the output,
   * of the input gradient of a pair or of the statistics */
  uint32_t input[POET_INPUTS];
  /* for page_in and page_out: the record of `tensor` */
  struct poet_tensor record;
  /* true: `tensor` begins with the step's loss */
  bool loss;
  /* for page_in, page_out and stream: true for the first page_out of a NEXT
   * tensor */
  bool renews;
  struct poet_nest nest; /* for stream */
  uint32_t workspace_bytes;
};

/* ---- nest_cells.c ---- */

/* A walker: a cell of the nest, and what the step to this cell has changed. */
struct poet_walker {
  uint32_t index[POET_LOOPS];
  uint8_t moved;    /* bits of the loops whose index changed; FIRST_CELL */
  uint8_t operand;  /* the next one to ask for, or the number of those let go */
  bool done;        /* there is no such cell */
  bool is_computed; /* but the slabs of the cell are not let go of */
};

struct poet_side {
  uint32_t begin, end;
};
typedef struct poet_side poet_sides[4];

struct poet_nest_state {
  struct poet_nest nest;
  struct poet_op part; /* the operator with the sizes of a cell */
  struct poet_walker ahead, here;
  /* next piece of the slab that `ahead` asks for, or that goes out */
  uint32_t piece[2];
  uint32_t sums; /* arena offset of accumulators apart, or 0 */
  /* Scratch of one function, here because the stack is small. */
  struct poet_walker next;
  poet_sides box, at;
  uint32_t parts[4];
  struct poet_piece moving;
};
_Static_assert(sizeof(struct poet_nest_state) == POET_NEST_BYTES,
               "as in FORMAT.md");

/* What a function needs of a running nest. */
struct poet_nest_run {
  struct poet *p;
  const struct poet_statement *s;
  struct poet_nest_state *state;
  struct poet_nest_operand *operands;
  uint32_t last; /* index of the last one */
};

static inline struct poet_nest_operand *
poet_output_of(const struct poet_nest_run *run) {
  return &run->operands[run->p->op.input_count];
}

/* Return the memory of slot `number` of an operand's ring. */
static inline uint8_t *poet_slab_at(const struct poet_nest_run *run,
                                    const struct poet_nest_operand *o,
                                    uint32_t number) {
  return run->p->memory.arena + o->offset + number * o->slab_bytes;
}

/* Return what the first loops leave of an axis of the operator. */
struct poet_side poet_range(const struct poet_nest_run *run,
                            const uint32_t *index, uint32_t depth,
                            uint32_t axis);
/* Replace rows of an operand with windows, along axis h or oh, by those of
 * its other operand that share a window with them. Return the axis of these. */
uint32_t poet_window(const struct poet_op *op, uint32_t axis,
                     struct poet_side *rows);
/* Find the slab of an operand: the whole one, or the pieces that have what its
 * loops leave. */
void poet_slab(const struct poet_nest_run *run,
               const struct poet_nest_operand *o, const uint32_t *index,
               struct poet_side *to);
/* Find what the first loops leave of an operand. */
void poet_box(const struct poet_nest_run *run,
              const struct poet_nest_operand *o, const uint32_t *index,
              uint32_t depth, struct poet_side *to);
/* Find box `number` of those of the given extents that make up a slab, in
 * row-major order. Return false if the slab has fewer. */
bool poet_divide(const struct poet_side *slab, const uint32_t *extent,
                 uint32_t number, struct poet_side *at);
uint32_t poet_box_bytes(const struct poet_side *box);
/* Return the offset, in bytes, of an element in a box whose memory is its
 * parts, one after another. The last part along an axis may be smaller. */
uint32_t poet_offset_in(const struct poet_side *box, const uint32_t *parts,
                        const struct poet_side *at);
/* Go to the next cell. */
void poet_next_cell(const struct poet_nest_run *run, struct poet_walker *w);
/* True: the slab of the operand is another one than in the cell before. */
bool poet_is_new(const struct poet_nest_operand *o,
                 const struct poet_walker *w);

/* ---- rows.c ---- */

#if POET_KEEPS_ROWS
/* Start a step. */
void poet_start_rows(struct poet *p);
/* Start a nest: find the slabs that it keeps, and renew their trailers. */
POET_CHECKED int poet_begin_rows(const struct poet_nest_run *run);
/* True: the running nest need not compute a cell, because it keeps the cell's
 * slab of the output, or because no token selects rows of the cell. */
bool poet_is_idle(const struct poet_nest_run *run, const struct poet_walker *w);
#else
#define poet_start_rows(p) ((void)(p))
#define poet_begin_rows(run) ((void)(run), 0)
#define poet_is_idle(run, w) ((void)(run), (void)(w), false)
#endif

/* ---- nest_compute.c ---- */

/* Compute the cell; `paired`: that of the input gradient, the kernel before. */
void poet_compute_cell(const struct poet_nest_run *run, bool paired);
/* Compute the statistics of the channels of the output's slab, which is
 * complete: two passes over its parts, in the order of the sums. */
void poet_compute_statistics(const struct poet_nest_run *run);

/* ---- pager.c ---- */

/* What a piece is moved for. */
struct poet_move {
  uint8_t *data;
  uint32_t statement;
  uint16_t tensor;
  bool write, renews;
  bool last;   /* the last piece of a page_in or page_out */
  bool nested; /* a nest moves it */
};

/* Submit the transfer of a piece. First retire others if the ring is full. */
POET_CHECKED int poet_submit_piece(struct poet *p,
                                   const struct poet_piece *piece,
                                   const struct poet_move *move);
/* True: the ring has a free entry. Retires transfers that have ended. */
POET_CHECKED int poet_has_room(struct poet *p, bool *room);
/* Wait until transfer `number` is retired, or until one fails. */
POET_CHECKED int poet_retire_transfer(struct poet *p, uint32_t number);
/* Execute a page_in or page_out: complete the transfer that the decoder has
 * queued, and submit it. */
POET_CHECKED int poet_page(struct poet *p, const struct poet_statement *s);
/* Pass a transfer to the port. */
void poet_submit(struct poet *p, struct poet_transfer *transfer);
/* Return the result of a finished transfer: 0 or its error. */
POET_CHECKED int poet_judge(struct poet *p, struct poet_transfer *transfer);
/* Wait until the first `until` tensors of the step have been transferred, or
 * until a transfer fails. Return 0 or its error. */
POET_CHECKED int poet_retire(struct poet *p, uint32_t until);

/* ---- nest.c ---- */

/* Execute a nest. No transfer is unfinished before it or after it. */
POET_CHECKED int poet_run_nest(struct poet *p, const struct poet_statement *s);

/* ---- computing.c ---- */

/* True: storage has the content that the tensor has in this step. */
bool poet_is_stored(const struct poet *p, const struct poet_tensor *record,
                    uint32_t tensor);
/* Decode and check the rest of a statement that computes `tensor`: `code` is
 * compute or stream. `again`: not for the first time in the step. If
 * s->nest.pair is set, the statement computes the tensor before it, too, and is
 * a pair or computes statistics. */
POET_CHECKED int poet_decode_computation(struct poet *p,
                                         struct poet_statement *s, uint8_t code,
                                         uint32_t tensor, bool again);

/* ---- decoder.c ---- */

/* True: data that is given to one run. */
static inline bool poet_is_batch(const struct poet_tensor *tensor) {
  return tensor->place == POET_PLACE_INPUT || tensor->place == POET_PLACE_NONE;
}

/* Make the list of residents the homes of stored tensors: the places in RAM
 * where a step expects them. Set `holds_batch`. */
POET_CHECKED int poet_decode_homes(struct poet *p);
/* Set the decoder to the start of the plan. */
POET_CHECKED int poet_decode_start(struct poet *p);
/* Decode and check the next statement. */
POET_CHECKED int poet_decode(struct poet *p, struct poet_statement *statement);

/* ---- weights.c ---- */

/* Find the home of a stored tensor, or NULL if it has none. */
POET_CHECKED int poet_home(struct poet *p, uint32_t number, uint8_t **home);
/* Check that the batch of the next step is in its home, if it has one. */
POET_CHECKED int poet_check_batch(struct poet *p);
/* Copy the committed weights to the homes that the host has not written, or to
 * all. bad_object: a tensor has no value, or not all of its bytes. */
POET_CHECKED int poet_restore_homes(struct poet *p);
POET_CHECKED int poet_restore(struct poet *p);
/* Write the homes to storage. `digest`: of all live weights. */
POET_CHECKED int poet_write_homes(struct poet *p, uint32_t *digest);
/* Read back what poet_write_homes has written; page_damaged if it differs. */
POET_CHECKED int poet_check_homes(struct poet *p);
/* Commit the live weights on storage. `prior`: the state before, or zeros. */
POET_CHECKED int poet_commit_live(struct poet *p,
                                  const struct poet_state *prior,
                                  uint32_t digest);
/* Check that a new value of a parameter is finite. */
POET_CHECKED int poet_check_renewed(struct poet *p, uint32_t tensor,
                                    uint32_t offset, uint32_t size_bytes);
/* Check the new weights that are in their homes only. */
POET_CHECKED int poet_check_live(struct poet *p);
/* Commit the running step, whose statements have ended. */
POET_CHECKED int poet_commit_step(struct poet *p);
/* Check that poet_save can save; `needed`: there is something to save. */
POET_CHECKED int poet_may_save(struct poet *p, bool *needed);
/* Write the homes, read them back and commit. */
POET_CHECKED int poet_save_live(struct poet *p);

/* ---- interpreter.c ---- */

/* Start a step. If status.running is 0 after it, it was the last one. */
POET_CHECKED int poet_begin_step(struct poet *p, uint32_t step,
                                 uint16_t trace_first, uint16_t trace_count);
/* Run the step to its end, or to that of its slice: POET_BUSY. */
POET_CHECKED int poet_run_step(struct poet *p);
/* Return the result of the step, after all its statements or an error.
 * POET_BUSY: the step starts again. */
POET_CHECKED int poet_end_step(struct poet *p, int error);
/* True: an unfinished slice belongs to the commit of a step. */
#if POET_LIBRARY
static inline bool poet_is_committing(const struct poet *p) {
  const struct poet_statement *s = (const void *)p->slices.statement;
  return p->slices.is_decoded && s->code == POET_STATEMENT_end;
}
#else
#define poet_is_committing(p) false
#endif

/* ---- load.c ---- */

/* Check both parts of a schedule, and decode its plan. */
POET_CHECKED int poet_validate(struct poet *p, uint32_t model_bytes,
                               uint32_t plan_bytes);

/* ---- server.c ---- */

/* The function poet.poll of a server, which is `context`: answer the requests
 * that have arrived. Return a number other than 0 if the step must stop. */
int poet_serve_poll(void *context);

#if POET_LIBRARY
/* ---- forward.c ---- */

/* The same as poet_infer, with a function that fills in the input. */
typedef void poet_fill_fn(const void *data, uint8_t *input,
                          uint32_t size_bytes);
POET_CHECKED int poet_infer_filled(struct poet *p, poet_fill_fn *fill,
                                   const void *data, const uint8_t **outputs);
#endif

#endif
