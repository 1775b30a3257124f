/*
 * learner.c - a device that learns from samples of its own: see learner.h.
 */
#include <string.h>

#include "learning.h"

#if POET_LIBRARY

static bool is_good(const struct poet_package *package, const uint8_t *sample) {
  return learner_scale(package, 0, package->sample_values, sample, NULL);
}

/* What the input of an inference is made of. */
struct given {
  const struct poet_package *package;
  const uint8_t *sample;
};

static void fill(const void *data, uint8_t *input, uint32_t size_bytes) {
  const struct given *given = data;
  poet_ignore(learner_scale(given->package, 0, size_bytes / sizeof(float),
                            given->sample, input)
                  ? 0
                  : 1);
}

static POET_CHECKED int infer(struct learning *l, const uint8_t *sample,
                              float *outputs) {
  const struct given given = {l->package, sample};
  const uint8_t *found;
  if (!is_good(l->package, sample)) {
    return POET_ERROR_bad_sample;
  }
  TRY(learner_finish(l));
  TRY(poet_infer_filled(&l->p, fill, &given, &found));
  memcpy(outputs, found, l->package->outputs * sizeof *outputs);
  return 0;
}

int poet_learner_infer(struct poet_learner *learner, const void *sample,
                       float *outputs) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, false));
  return learner_leave(l, true, infer(l, sample, outputs));
}

static POET_CHECKED int teach(struct learning *l, const void *sample,
                              uint32_t label) {
  if (label >= l->package->classes) {
    return POET_ERROR_bad_label;
  }
  if (!is_good(l->package, sample)) {
    return POET_ERROR_bad_sample;
  }
  /* A commit must not be disturbed. Without storage, the running step must have
   * all its samples before one is replaced. */
  while (l->phase == PHASE_save ||
         (l->phase == PHASE_gather && !has_storage(l))) {
    const int error = learner_work(l, 0);
    TRY(error == POET_BUSY ? 0 : error);
  }
  /* A sample must not be older than a commit that may be on storage. */
  if (l->phase == PHASE_idle) {
    TRY(learner_renew(l));
  }
  const uint32_t next = learner_next_step(l);
  const uint32_t first = has_storage(l) ? l->p.committed.now.step + 1 : next;
  const int error = poet_samples_add(&l->samples, label, next, first, sample);
  l->must_save |= error == POET_BUSY;
  if (l->samples.unsure_block) {
    learner_stop(l); /* it could commit before the sample is taken back */
  }
  return error;
}

int poet_learner_teach(struct poet_learner *learner, const void *sample,
                       uint32_t label) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, false));
  return learner_leave(l, true, teach(l, sample, label));
}

int poet_learner_learn(struct poet_learner *learner, uint32_t steps) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, false, false));
  const uint32_t step = learner_step(l), wanted = learner_wanted(l);
  const uint32_t most = POET_NO_STEP - 2 - step - wanted;
  l->target = step;
  if (steps) {
    l->target += wanted + (steps < most ? steps : most);
  }
  return learner_leave(l, false, 0);
}

static POET_CHECKED int poll(struct learning *l, uint32_t budget_us) {
  const uint32_t begin = poet_ticks(&l->port);
  uint32_t passed = 0;
  int error;
  if (l->staging) {
    return POET_ERROR_staged;
  }
  do {
    error = learner_work(l, budget_us - passed);
    passed = poet_ticks(&l->port) - begin;
  } while (error == POET_BUSY && passed < budget_us);
  return error;
}

int poet_learner_poll(struct poet_learner *learner, uint32_t budget_us) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, false));
  return learner_leave(l, true, poll(l, budget_us));
}

static POET_CHECKED int save(struct learning *l) {
  if (!has_storage(l)) {
    return POET_ERROR_no_storage;
  }
  return l->staging ? POET_ERROR_staged : learner_commit(l);
}

int poet_learner_save(struct poet_learner *learner) {
  struct learning *l = learning_of(learner);
  TRY(learner_enter(l, true, false));
  return learner_leave(l, true, save(l));
}

int poet_learner_state(const struct poet_learner *learner,
                       struct poet_learner_state *state) {
  const struct learning *l = (const void *)learner->opaque.bytes;
  if (learner_is_inside(l)) {
    return POET_ERROR_reentered;
  }
  if (l->opened != OPENED) {
    return POET_ERROR_closed;
  }
  *state = (struct poet_learner_state){
      .step = learner_step(l),
      .saved_step = has_storage(l) ? l->p.committed.now.step : 0,
      .next_step = learner_next_step(l),
      .wanted = learner_wanted(l),
      .loss = l->loss,
      .busy = l->phase != PHASE_idle || l->must_save,
  };
  for (uint32_t c = 0; c < l->package->classes; c++) {
    const uint32_t count = poet_samples_count(&l->samples, c, UINT32_MAX);
    state->samples += count;
    state->classes += count != 0;
  }
  return 0;
}

#endif
