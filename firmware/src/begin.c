/*
 * begin.c - the commit that makes the tensors which a host has written the
 * weights of a step.
 *
 * State: `staging`, and memory.bitmap while staging (objects.c).
 */
#include "plan.h"

/* Return whether FIXED tensors get the generation of the next commit. */
static bool renews_fixed(const struct poet *p) {
  return !poet_committed(p) || (p->staging && p->staging_fixed);
}

/* Complete the next slots: for a CURRENT tensor that was not written, copy its
 * current slot to its next slot. Then check the CRCs of all CURRENT tensors in
 * these slots. Copy INPUT tensors to the slots of the step after `step`. If a
 * FIXED tensor was written, give the others the same generation. An INPUT or
 * FIXED tensor that was never written stays damaged. */
static POET_CHECKED int complete_slots(struct poet *p, uint32_t step) {
  const uint32_t input_slot = 2 - ((step - poet_last_step(p)) & 1);
  for (uint32_t i = 0; i < p->model.stored_count; i++) {
    struct poet_tensor tensor;
    TRY(poet_read_tensor(p, i, &tensor));
    if (tensor.place == POET_PLACE_INPUT ||
        (tensor.place == POET_PLACE_FIXED && renews_fixed(p) &&
         poet_committed(p) && !poet_is_staged(p, i))) {
      const bool input = tensor.place == POET_PLACE_INPUT;
      const int error = poet_carry(p, i, &tensor, input ? input_slot : 1);
      if (error && error != POET_ERROR_page_damaged) {
        return error;
      }
    } else if (tensor.place == POET_PLACE_CURRENT) {
      if (!poet_is_staged(p, i)) {
        if (!poet_committed(p)) {
          return poet_fail(p, POET_ERROR_bad_object, i);
        }
        TRY(poet_carry(p, i, &tensor, 1));
      }
      TRY(poet_verify(p, i, &tensor, true));
    }
  }
  return 0;
}

/* Without storage: the weights in RAM become those of `step`. */
static POET_CHECKED int begin_live(struct poet *p, uint32_t step) {
  TRY(poet_restore_homes(p));
  TRY(poet_replace_commit(p));
  p->live_step = step;
  p->result = (struct poet_step_result){
      .step = step, .loss = poet_in_memory(p) ? p->committed.now.loss : 0.0f};
  uint32_t digest;
  TRY(poet_write_homes(p, &digest));
  TRY(poet_check_homes(p));
  TRY(poet_commit_live(p, &(struct poet_state){0}, digest));
  p->staging = false;
  p->verified = POET_NONE;
  return 0;
}

int poet_begin(struct poet *p, uint32_t step) {
  struct poet_commit commit;
  TRY(poet_ready(p));
  if (!p->loaded || poet_is_forward(p)) {
    return POET_ERROR_no_schedule;
  }
  if (step == POET_NO_STEP) {
    return poet_fail(p, POET_ERROR_wrong_step, step);
  }
  if (poet_has_storage(p)) {
    poet_drop_steps(p);
  }
  if (!poet_in_ram(p)) {
    TRY(poet_renumber(p));
  }
  if (!p->staging && step == poet_last_step(p) &&
      (poet_has_storage(p) || step == p->live_step)) {
    return 0;
  }
  if (poet_in_ram(p)) {
    return begin_live(p, step);
  }
  poet_forget_rows(p);
  TRY(complete_slots(p, step));
  commit = p->committed;
  if (renews_fixed(p)) {
    commit.now.fixed = p->committed.sequence + 1;
  }
  commit.model_crc = p->model.crc;
  commit.data_blocks = p->model.data_blocks;
  commit.prior_slot = p->committed.slot;
  commit.slot = (uint8_t)poet_next_slot(p);
  commit.now.step = step;
  commit.now.generation = p->committed.sequence + 1;
  if (!poet_in_memory(p)) {
    commit.now.loss = 0.0f;
  }
  commit.prior = (struct poet_state){0}; /* of other weights */
  TRY(poet_stored_digest(p, true, &commit.now.digest));
  /* Delete the job before the commit: the job belongs to the old weights, and a
   * restart after the commit must not continue it. If the card has no space for
   * a job, this write is refused, which does no harm. */
  const uint32_t none = 0;
  poet_ignore(poet_write(p, POET_OBJECT_JOB, 0, 0, &none, sizeof none));
  TRY(p->storage_status);
  TRY(poet_commit(p, &commit, 1));
  p->staging = false;
  p->verified = POET_NONE;
  p->result = (struct poet_step_result){.step = step};
  return 0;
}
