/*
 * learner_work.c - the work of a learner, in slices: gather a batch, run a
 * step, save.
 *
 * The batch of a step is written to the input tensors when the step begins:
 * first the data of all its samples, then the labels.
 */
#include <math.h>
#include <string.h>

#include "learning.h"
#include "poet/exact.h"

#if POET_LIBRARY

enum { CHUNK = 64 }; /* values of a sample that a slice gathers */

static POET_CHECKED int write_value(struct learning *l, uint32_t number,
                                    uint32_t size_bytes) {
  static const uint8_t zeros[64];
  const uint8_t *value = l->package->values[number];
  for (uint32_t at = 0; at < size_bytes;) {
    const uint32_t left = size_bytes - at;
    const uint32_t most = value ? left : sizeof zeros;
    const uint32_t part = left < most ? left : most;
    TRY(poet_write(&l->p, POET_OBJECT_TENSOR, (uint16_t)number, at,
                   value ? value + at : zeros, part));
    at += part;
  }
  return 0;
}

/* Does the storage have the value of the package? */
static POET_CHECKED int has_value(struct learning *l, uint32_t number,
                                  uint32_t size_bytes, bool *same) {
  const uint8_t *value = l->package->values[number];
  *same = true;
  for (uint32_t at = 0; at < size_bytes && *same; at += sizeof(float)) {
    static const uint8_t zeros[sizeof(float)];
    uint8_t found[sizeof zeros];
    TRY(poet_read(&l->p, POET_OBJECT_TENSOR, (uint16_t)number, at, found,
                  sizeof found));
    *same = !memcmp(found, value ? value + at : zeros, sizeof found);
  }
  return 0;
}

/* A frozen tensor has one place, so it is written only if another package has
 * begun the store. */
static POET_CHECKED int is_to_write(struct learning *l, uint32_t number,
                                    const struct poet_tensor *tensor,
                                    bool *found) {
  *found = tensor->place == POET_PLACE_CURRENT;
  if (tensor->place == POET_PLACE_FIXED) {
    bool same = false;
    const int error = poet_committed(&l->p)
                          ? has_value(l, number, tensor->size_bytes, &same)
                          : 0;
    TRY(error == POET_ERROR_page_damaged ? 0 : error);
    *found = error || !same;
  }
  return 0;
}

int learner_begin(struct learning *l, uint32_t step) {
  for (uint32_t i = 0; i < l->p.model.stored_count; i++) {
    struct poet_tensor tensor;
    TRY(poet_read_tensor(&l->p, i, &tensor));
    bool found;
    TRY(is_to_write(l, i, &tensor, &found));
    if (found) {
      TRY(write_value(l, i, tensor.size_bytes));
    }
  }
  TRY(poet_begin(&l->p, step));
  l->loss = step ? l->loss : NAN;
  return 0;
}

static bool runs_step(const struct learning *l) {
  return l->phase == PHASE_gather || l->phase == PHASE_step;
}

uint32_t learner_step(const struct learning *l) {
  if (runs_step(l)) {
    return l->running - 1;
  }
  return l->p.live_step == POET_NO_STEP ? l->p.committed.now.step
                                        : l->p.live_step;
}

uint32_t learner_next_step(const struct learning *l) {
  return learner_step(l) + 1 + runs_step(l);
}

uint32_t learner_wanted(const struct learning *l) {
  const uint32_t step = learner_step(l);
  return l->target > step ? l->target - step : 0;
}

int learner_restore(struct learning *l) {
  TRY(poet_restore(&l->p));
  l->loss = learner_committed_loss(l);
  return 0;
}

static uint32_t width(const struct poet_package *package) {
  static const uint8_t bytes[] = {4, 2, 1, 1};
  return bytes[package->raw];
}

uint32_t learner_raw_bytes(const struct poet_package *package) {
  return package->sample_values * width(package);
}

static float as_float(uint8_t type, const uint8_t *raw) {
  float value;
  int16_t integer;
  switch (type) {
  case POET_RAW_float32:
    memcpy(&value, raw, sizeof value);
    return value;
  case POET_RAW_int16:
    memcpy(&integer, raw, sizeof integer);
    return integer;
  case POET_RAW_int8:
    return (int8_t)*raw;
  default:
    return *raw;
  }
}

static bool is_one(const float *value) {
  static const float one = 1.0f;
  return !memcmp(value, &one, sizeof one);
}

bool learner_scale(const struct poet_package *package, uint32_t first,
                   uint32_t count, const uint8_t *raw, uint8_t *floats) {
  const uint32_t of_channel = package->sample_values / package->channels;
  uint32_t channel = first / of_channel;
  uint32_t left = of_channel - first % of_channel;
  bool finite = true;
  for (uint32_t i = 0; i < count; i++) {
    const float moved = as_float(package->raw, raw) - package->raw_offset;
    const float x = moved * package->raw_scale;
    float value = x - package->offset[channel];
    if (!is_one(&package->scale[channel])) { /* without an FPU, this is slow */
      value /= package->scale[channel];
    }
    finite &= poet_is_finite((const uint8_t *)&value, sizeof value);
    raw += width(package);
    if (floats) {
      memcpy(floats, &value, sizeof value);
      floats += sizeof value;
    }
    if (!--left) {
      left = of_channel;
      channel++;
    }
  }
  return finite;
}

static bool draw(struct learning *l) {
  const struct poet_package *package = l->package;
  return poet_samples_draw(&l->samples, package->seed, l->running,
                           package->batch, l->gathered, &l->label, &l->reader);
}

/* Write a part of a sample to the batch, and set `whole` after its last one. */
static POET_CHECKED int gather_values(struct learning *l, bool *whole) {
  const struct poet_package *package = l->package;
  const uint32_t values = package->sample_values;
  const uint32_t first = l->reader.offset / width(package);
  const uint32_t room =
      poet_samples_room(&l->samples, &l->reader) / width(package);
  const uint32_t count = room < CHUNK ? room : CHUNK;
  const uint32_t raw_bytes = count * width(package);
  uint8_t floats[CHUNK * sizeof(float)];
  uint8_t *raw = floats + sizeof floats - raw_bytes;
  TRY(poet_samples_read(&l->samples, &l->reader, raw, raw_bytes));
  poet_ignore(learner_scale(package, first, count, raw, floats) ? 0 : 1);
  *whole = first + count == values;
  return poet_write(&l->p, POET_OBJECT_TENSOR,
                    l->is_label ? package->label : package->data,
                    (l->gathered * values + first) * 4u, floats, count * 4u);
}

static POET_CHECKED int gather_label(struct learning *l) {
  const uint32_t at = l->gathered * (uint32_t)sizeof l->label;
  return poet_write(&l->p, POET_OBJECT_TENSOR, l->package->label, at, &l->label,
                    sizeof l->label);
}

/* Gather a part of the batch, and begin the step when it is complete. */
static POET_CHECKED int gather(struct learning *l) {
  bool whole = true;
  if (!l->reader.offset && !draw(l)) {
    return POET_ERROR_storage_failed;
  }
  TRY(l->is_label && !l->package->repeats_the_input ? gather_label(l)
                                                    : gather_values(l, &whole));
  if (!whole) {
    return 0;
  }
  l->reader.offset = 0;
  if (++l->gathered < l->package->batch) {
    return 0;
  }
  l->gathered = 0;
  if (!l->is_label) {
    l->is_label = true;
    return 0;
  }
  TRY(poet_step_begin(&l->p, l->running));
  l->phase = PHASE_step;
  return 0;
}

/* Return whether a step is to be run, and samples are there for it. */
static bool has_step(struct learning *l) {
  l->gathered = 0;
  l->running = learner_step(l) + 1;
  return learner_wanted(l) && draw(l);
}

int learner_renew(struct learning *l) {
  if (!has_storage(l)) {
    return 0;
  }
  TRY(poet_samples_settle(&l->samples));
  if (poet_in_ram(&l->p) && l->p.live_step == POET_NO_STEP) {
    TRY(learner_restore(l));
  }
  if (l->must_renew) {
    l->p.stale = true;
    TRY(poet_renumber(&l->p));
    l->must_renew = poet_uncommitted(&l->p) != 0; /* not yet done */
  }
  return 0;
}

static POET_CHECKED int begin_work(struct learning *l) {
  TRY(learner_renew(l));
  if (l->must_save) {
    TRY(poet_save_begin(&l->p));
    l->phase = PHASE_save;
  } else if (has_step(l)) {
    l->is_label = false;
    l->reader.offset = 0;
    l->phase = PHASE_gather;
  }
  return 0;
}

/* Training diverged. */
static POET_CHECKED int go_back(struct learning *l) {
  if (has_storage(l)) {
    TRY(learner_restore(l));
  } else {
    /* a sample that was taught during the step is closed to it */
    TRY(learner_begin(l, l->running));
  }
  l->target = learner_step(l);
  return POET_ERROR_not_finite;
}

static POET_CHECKED int run_step(struct learning *l, uint32_t budget_us) {
  struct poet_step_result result;
  const int error = poet_step_poll(&l->p, budget_us, &result);
  if (error == POET_BUSY) {
    return 0;
  }
  l->phase = PHASE_idle;
  if (error == POET_ERROR_not_finite) {
    return go_back(l);
  }
  TRY(error);
  l->loss = result.loss;
  return 0;
}

static POET_CHECKED int save(struct learning *l) {
  struct poet_saved saved;
  const int error = poet_save_poll(&l->p, &saved);
  if (error == POET_BUSY) {
    return 0;
  }
  l->phase = PHASE_idle;
  l->must_save = error != 0;
  return error;
}

void learner_stop(struct learning *l) {
  poet_abandon(&l->p);
  l->phase = PHASE_idle;
}

static POET_CHECKED int work(struct learning *l, uint32_t budget_us) {
  switch (l->phase) {
  case PHASE_gather:
    return gather(l);
  case PHASE_step:
    return run_step(l, budget_us);
  case PHASE_save:
    return save(l);
  default:
    return begin_work(l);
  }
}

int learner_work(struct learning *l, uint32_t budget_us) {
  const int error = work(l, budget_us);
  if (error) {
    learner_stop(l);
    return error;
  }
  return l->phase != PHASE_idle || l->must_save || has_step(l) ? POET_BUSY : 0;
}

int learner_finish(struct learning *l) {
  while (l->phase != PHASE_idle) {
    const int error = learner_work(l, UINT32_MAX);
    TRY(error == POET_BUSY ? 0 : error);
  }
  return 0;
}

int learner_commit(struct learning *l) {
  struct poet_saved saved;
  TRY(learner_finish(l));
  TRY(learner_renew(l));
  TRY(poet_save(&l->p, &saved));
  l->must_save = false;
  return 0;
}

#endif
