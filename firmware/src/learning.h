/*
 * learning.h - functions that the files of the learner share, lowest layer
 * first.
 */
#ifndef POET_LEARNING_H
#define POET_LEARNING_H

#include <math.h>

#include "plan.h"
#include "poet/learner.h"
#include "poet/package.h"
#include "samples.h"

/* What struct poet_learner holds. */
struct learning {
  /* OPENED; FAILED: `open` found storage that it does not use; else 0 */
  uint32_t opened;
  uint32_t inside; /* INSIDE: a function runs */
  const struct poet_package *package;
  const struct poet_device *device;
  struct poet_program training; /* that of the package, with own blocks */
  struct poet_port port;
  struct poet p;
  struct poet_samples samples;
  uint32_t target; /* the step up to which the application wants to train */
  float loss;      /* of the last step */

  /* A step or a save that is unfinished. */
  uint8_t phase;     /* enum phase */
  uint32_t running;  /* number of the step that is gathered or run */
  bool must_save;    /* before the next step begins */
  bool must_renew;   /* the commit record, before anything is written */
  bool is_label;     /* the batch of labels is gathered, after the data */
  uint32_t gathered; /* samples of this batch that are complete */
  uint32_t label;    /* of the sample that is read */
  struct poet_sample_reader reader;

  /* Tensors that the application has written, but not adopted. */
  bool staging;
  uint32_t *staged;  /* bit i: stored tensor i is complete */
  uint32_t arriving; /* tensor that was written last */
  uint32_t arrived;  /* bytes of it; 0: it is complete, or an error lost them */
  uint32_t crc;      /* of these bytes */
  bool is_partial;   /* it is not complete */
};

enum phase { PHASE_idle, PHASE_gather, PHASE_step, PHASE_save };
#define OPENED 0x4e45504fu
#define FAILED 0x4c494146u
#define INSIDE 0x45444953u

static inline bool has_storage(const struct learning *l) {
  return poet_has_storage(&l->p);
}

/* ---- learner_device.c ---- */

static inline struct learning *learning_of(struct poet_learner *learner) {
  return (struct learning *)(void *)learner->opaque.bytes;
}

/* Return the loss of the newest commit. */
static inline float learner_committed_loss(const struct learning *l) {
  const struct poet_state *now = &l->p.committed.now;
  return now->step ? now->loss : NAN;
}

/* Begin a call. `bus`: it may use the storage. `closed`: although `open` has
 * refused what the storage holds. */
POET_CHECKED int learner_enter(struct learning *l, bool bus, bool closed);
/* End it, and return `result` as the application knows it. */
POET_CHECKED int learner_leave(struct learning *l, bool bus, int result);
/* Can no call begin, because of an interrupt or another call? */
bool learner_is_inside(const struct learning *l);
/* Make the port that the device stands for. */
void learner_make_port(struct learning *l);
/* Return the blocks of an erase unit; 1 if no erase is needed. */
uint32_t learner_unit(const struct poet_device *device);

/* ---- learner_work.c ---- */

/* Make the values of the package the weights of a step. */
POET_CHECKED int learner_begin(struct learning *l, uint32_t step);
uint32_t learner_step(const struct learning *l);
uint32_t learner_next_step(const struct learning *l);
uint32_t learner_wanted(const struct learning *l);
/* Let the weights be those of the newest commit, of which `loss` is known. */
POET_CHECKED int learner_restore(struct learning *l);
/* Scale values of a sample, from value `first` on. `floats` may end with the
 * raw values, or is NULL. Return false if one is not finite. */
bool learner_scale(const struct poet_package *package, uint32_t first,
                   uint32_t count, const uint8_t *raw, uint8_t *floats);
uint32_t learner_raw_bytes(const struct poet_package *package);
/* Run one slice. POET_BUSY: there is more to do. */
POET_CHECKED int learner_work(struct learning *l, uint32_t budget_us);
/* End what runs, without its result. */
void learner_stop(struct learning *l);
/* Finish a step or a save that has begun. */
POET_CHECKED int learner_finish(struct learning *l);
/* Restore weights that an error has lost, and commit the newest commit again if
 * another one may be on storage: its slot is the next one to be written. */
POET_CHECKED int learner_renew(struct learning *l);
/* Commit all steps. */
POET_CHECKED int learner_commit(struct learning *l);

/* ---- learner_weights.c ---- */

/* Return the blocks of the storage in which tensors are staged. */
uint32_t learner_staging_blocks(const struct poet_package *package,
                                uint32_t unit);

#endif
