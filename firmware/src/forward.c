/*
 * forward.c - forward programs: inference between two steps, with the weights
 * of the last one.
 *
 * poet_load and poet_step also run a forward program alone. Here the training
 * schedule stays loaded: poet_infer lends struct poet to the forward program
 * for one run.
 *
 * State: `forward` and `infers`. While `infers`, model, plan and what
 * poet_validate sets belong to the forward program. A struct kept on the stack
 * has what belongs to the training schedule. The decoder leaves the marks of
 * homes in memory.bitmap as they are.
 *
 * Why the next step gives the same bits: the stored tensors and their homes are
 * those of the training schedule, which poet_load_forward has checked, and each
 * home has its tensor again when the plan ends, which the decoder has checked.
 * Pages have a generation that no step has.
 */
#include <string.h>

#include "plan.h"
#include "poet/exact.h"

#if POET_LIBRARY

/* What belongs to the training schedule: the fields of struct poet from `model`
 * to `factor`. Those that an inference does not change may be among them. */
enum { FIRST = offsetof(struct poet, model) };
struct kept {
  uint8_t bytes[offsetof(struct poet, factor) - FIRST];
};

static void lend(struct poet *p, struct kept *kept) {
  memcpy(kept->bytes, (uint8_t *)p + FIRST, sizeof kept->bytes);
  p->kept_at_start = 0; /* the check of the model counts them */
  p->infers = true;
}

static void take_back(struct poet *p, const struct kept *kept) {
  p->infers = false;
  memcpy((uint8_t *)p + FIRST, kept->bytes, sizeof kept->bytes);
  p->dirty_bytes = p->memory.arena_bytes;
}

/* Compute a CRC of the first `count` tensors (those on storage), of their
 * homes, and of what determines their places there. */
static POET_CHECKED int sign(struct poet *p, uint32_t count, uint32_t *crc) {
  const uint32_t about[] = {p->model.slot_stride, p->model.data_blocks,
                            p->model.flags & ~(unsigned)POET_MODEL_FORWARD,
                            p->plan.commit_every, p->trained};
  *crc = poet_crc(0, about, sizeof about);
  TRY(poet_decode_homes(p));
  if (poet_is_resident(p, count)) {
    poet_drop(p, poet_find(p, count));
  }
  *crc = poet_crc(*crc, p->memory.residents,
                  p->decoder.resident_count *
                      (uint32_t)sizeof *p->memory.residents);
  for (uint32_t i = 0; i < count; i++) {
    struct poet_tensor tensor;
    struct poet_pieces pieces;
    TRY(poet_read_tensor(p, i, &tensor));
    TRY(poet_read_pieces(p, &tensor, &pieces));
    if (!pieces.shared) {
      tensor.cut = 0; /* another number for the same cut */
    }
    *crc = poet_crc(*crc, &tensor, sizeof tensor);
    *crc = poet_crc(*crc, &pieces.cut, sizeof pieces.cut);
  }
  return 0;
}

/* `wanted`: of the training schedule. */
static POET_CHECKED int check(struct poet *p, uint32_t stored,
                              uint32_t wanted) {
  const struct poet_program *program = p->forward;
  uint32_t found;
  TRY(poet_validate(p, program->model_bytes, program->plan_bytes));
  if (!poet_is_forward(p) || p->model.stored_count != stored + 1) {
    return poet_fail(p, POET_ERROR_bad_table, POET_NONE);
  }
  TRY(sign(p, stored, &found));
  return found == wanted ? 0 : poet_fail(p, POET_ERROR_bad_table, POET_NONE);
}

static POET_CHECKED int ready(struct poet *p) {
  if (p->status.running) {
    return POET_ERROR_busy;
  }
  TRY(poet_ready(p));
  if (!p->loaded || poet_is_forward(p)) {
    return POET_ERROR_no_schedule;
  }
  return p->staging ? POET_ERROR_busy : 0;
}

int poet_load_forward(struct poet *p, const struct poet_program *program) {
  struct kept kept;
  uint32_t wanted;
  TRY(ready(p));
  const uint32_t stored = p->model.stored_count;
  TRY(sign(p, stored, &wanted));
  lend(p, &kept);
  p->forward = program;
  const int error = check(p, stored, wanted);
  take_back(p, &kept);
  if (error) {
    p->forward = NULL;
  }
  return error;
}

static const struct poet_resident *find(const struct poet *p, uint32_t tensor) {
  const uint32_t index = poet_find(p, tensor);
  return index < p->decoder.resident_count ? &p->memory.residents[index] : NULL;
}

static POET_CHECKED int infer(struct poet *p, poet_fill_fn *fill,
                              const void *data, const uint8_t **outputs) {
  const struct poet_program *program = p->forward;
  memcpy(&p->model, program->model, sizeof p->model);
  memcpy(&p->plan, program->plan, sizeof p->plan);
  p->loss = POET_NONE;
  p->kept_at_start = p->model.keep_count;
  p->result.step = ~p->inferences; /* no inference has this number yet */
  TRY(poet_decode_homes(p));
  const struct poet_resident *input = find(p, p->model.stored_count - 1u);
  if (!input) {
    return POET_ERROR_bad_plan;
  }
  fill(data, p->memory.arena + input->offset, input->size_bytes);
  TRY(poet_step(p, p->inferences++, 0, 0, &p->result));
  const struct poet_resident *output = find(p, p->model.tensor_count - 1u);
  *outputs = output ? p->memory.arena + output->offset : NULL;
  return output ? 0 : POET_ERROR_bad_plan;
}

/* If a weight on storage is damaged, the next inference has those of the newest
 * commit, or of the one before it. */
static POET_CHECKED int go_back(struct poet *p) {
  struct poet_tensor tensor;
  if (p->detail >= p->model.stored_count) { /* a page of the inference */
    return 0;
  }
  TRY(poet_read_tensor(p, p->detail, &tensor));
  if (tensor.place != POET_PLACE_CURRENT) {
    return 0;
  }
  if (poet_uncommitted(p)) {
    poet_drop_steps(p);
    return 0;
  }
  return poet_roll_back(p);
}

int poet_infer_filled(struct poet *p, poet_fill_fn *fill, const void *data,
                      const uint8_t **outputs) {
  struct kept kept;
  TRY(ready(p));
  if (!p->forward) {
    return POET_ERROR_no_schedule;
  }
  if (poet_committed(p) && p->live_step == POET_NO_STEP) {
    TRY(poet_restore(p));
  }
  lend(p, &kept);
  const int error = infer(p, fill, data, outputs);
  take_back(p, &kept);
  if (error == POET_ERROR_page_damaged) {
    TRY(go_back(p));
  }
  return error;
}

static void copy(const void *data, uint8_t *input, uint32_t size_bytes) {
  memcpy(input, data, size_bytes);
}

int poet_infer(struct poet *p, const void *data, const uint8_t **outputs) {
  return poet_infer_filled(p, copy, data, outputs);
}

#endif
