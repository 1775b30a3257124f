/*
 * rows.c - renews only those rows of a table that may have changed.
 *
 * Plain SGD without weight decay changes only rows that a token of the step
 * selects. A nest that renews a table works slab by slab along its rows. The
 * step writes to the slot that holds the state of three steps ago. So a slab of
 * which no row was selected in this step and the two before it has its bytes in
 * that slot already: it is kept. Nothing of it is read, computed or written,
 * but its trailers get the generation of the step.
 *
 * A nest that selects rows of a table skips cells whose rows no token selects:
 * they change nothing. So it reads no slab without a selected row.
 *
 * State: memory.rows. Its `steps` say in how many further steps a slab must be
 * renewed. They are valid while `are_known`. After a mount, an upload or a
 * failed step they are not: then each slab counts as selected in the step
 * before, so the next two steps renew all slabs.
 *
 * Why a power cut leaves the last committed step: a kept slab is the same in
 * the slots that the cut may leave as the current ones. After the cut, nothing
 * is taken for kept that the unfinished step may have written.
 */
#include "plan.h"

#if POET_KEEPS_ROWS

enum {
  RENEWED = POET_SLOTS, /* steps that write a slab whose rows are selected */
  PER_BYTE = 4
};

static uint32_t further_steps(const struct poet_rows *rows, uint32_t slab) {
  const uint32_t byte = rows->steps[slab / PER_BYTE];
  return byte >> 2 * (slab % PER_BYTE) & 3u;
}

static void set_further_steps(const struct poet_rows *rows, uint32_t slab,
                              uint32_t steps) {
  uint8_t *byte = &rows->steps[slab / PER_BYTE];
  const uint32_t at = 2 * (slab % PER_BYTE);
  *byte = (uint8_t)((*byte & ~(3u << at)) | steps << at);
}

void poet_start_rows(struct poet *p) {
  struct poet_rows *rows = p->memory.rows;
  if (!rows) {
    return;
  }
  for (uint32_t i = 0; i < rows->capacity && !rows->are_known; i++) {
    set_further_steps(rows, i, RENEWED);
  }
  rows->are_known = true;
  rows->used = 0;
}

/* Return the rows of a slab, or 0 if the nest must renew all slabs. */
static uint32_t rows_of_slab(const struct poet_nest_run *run) {
  const struct poet_op *op = &run->p->op;
  const struct poet_nest *nest = &run->state->nest;
  const struct poet_ring *ring = &nest->ring[op->input_count];
  uint32_t loops = 0;
  for (uint32_t i = 0; i < nest->loops; i++) {
    loops += nest->axis[i] == POET_AXIS_k;
  }
  return run->s->renews && op->kernel == POET_KERNEL_embedding_grad &&
                 op->sink == POET_SINK_sgd && op->weight_decay == 0.0f &&
                 ring->slots && !nest->ring[0].slots && loops == 1
             ? poet_nest_step(nest, POET_AXIS_k, ring->depth)
             : 0;
}

static bool is_kept(const struct poet_rows *rows, uint32_t row) {
  return !further_steps(rows, rows->first + row / rows->per_slab);
}

/* Give the trailers of the kept pieces the generation of this step. */
static POET_CHECKED int keep(const struct poet_nest_run *run) {
  struct poet *p = run->p;
  const struct poet_nest_operand *new = &run->operands[p->op.input_count];
  const struct poet_nest_operand *old = &run->operands[run->state->nest.over];
  struct poet_piece *piece = &run->state->moving;
  for (uint32_t i = 0; i < new->pieces.count; i++) {
    uint32_t trailer[2];
    poet_piece(p, &old->tensor, &old->pieces, i, false, piece);
    if (!is_kept(p->memory.rows, piece->offset / (4 * p->op.c))) {
      continue;
    }
    TRY(poet_read_trailer(p, piece, trailer));
    if (trailer[1] != piece->owner) {
      return poet_fail(p, POET_ERROR_page_damaged, old->number);
    }
    poet_piece(p, &new->tensor, &new->pieces, i, false, piece);
    TRY(poet_seal(p, piece, trailer[0]));
    trailer[1] = piece->owner;
    p->digest ^= poet_crc(0, trailer, sizeof trailer);
  }
  return 0;
}

static const uint32_t *tokens_of(const struct poet_nest_run *run) {
  return (const uint32_t *)(const void *)(run->p->memory.arena +
                                          run->s->input[0]);
}

int poet_begin_rows(const struct poet_nest_run *run) {
  const struct poet *p = run->p;
  struct poet_rows *rows = p->memory.rows;
  const uint32_t count = p->op.k, per_slab = rows_of_slab(run);
  if (!rows) {
    return 0;
  }
  rows->per_slab = 0;
  if (!per_slab || (count - 1) / per_slab >= rows->capacity - rows->used) {
    return 0;
  }
  rows->per_slab = per_slab;
  rows->first = rows->used;
  rows->used += (count - 1) / per_slab + 1;
  for (uint32_t i = rows->first; i < rows->used; i++) {
    const uint32_t steps = further_steps(rows, i);
    set_further_steps(rows, i, steps ? steps - 1 : 0);
  }
  const uint32_t *tokens = tokens_of(run);
  for (uint32_t n = 0; n < p->op.n; n++) {
    if (tokens[n] < count) {
      set_further_steps(rows, rows->first + tokens[n] / per_slab, RENEWED);
    }
  }
  return keep(run);
}

/* The first rows are never idle: their cells set rows of wrong tokens to NaN.
 */
static bool selects_nothing(const struct poet_nest_run *run,
                            const struct poet_walker *w) {
  const struct poet_nest *nest = &run->state->nest;
  const struct poet_side rows =
      poet_range(run, w->index, nest->loops, POET_AXIS_k);
  const struct poet_side text =
      poet_range(run, w->index, nest->loops, POET_AXIS_n);
  const uint32_t *tokens = tokens_of(run);
  uint32_t n = rows.begin && !nest->ring[0].slots ? text.begin : text.end + 1;
  while (n < text.end && tokens[n] - rows.begin >= rows.end - rows.begin) {
    n++;
  }
  return n == text.end;
}

bool poet_is_idle(const struct poet_nest_run *run,
                  const struct poet_walker *w) {
  const struct poet_rows *rows = run->p->memory.rows;
  const struct poet_nest *nest = &run->state->nest;
  if (run->p->op.kernel == POET_KERNEL_embedding) {
    return selects_nothing(run, w);
  }
  return rows && rows->per_slab &&
         is_kept(rows,
                 poet_range(run, w->index, nest->loops, POET_AXIS_k).begin);
}

#endif
