/*
 * slices.h - steps and saves in slices, for an application that has other work
 * to do. A part of poet.h.
 *
 * A slice is one statement of the plan, one cell of a nest, one block of a
 * transfer or of a commit, or one erase. `solve --slice` bounds the time of
 * computations. Results do not depend on slices and budgets.
 *
 * Between two calls of poll, the step owns the arena and all other memory of
 * the struct poet. poet_write may send INPUT tensors for the next step, where
 * it may do so while a step runs. poet_infer returns busy while a step runs.
 * Every other function that uses the schedule, the storage or the arena
 * abandons the step or the save: the step has then failed, and the steps since
 * the newest commit are lost, as after any failed step. A save that was
 * abandoned has committed nothing, and the weights in RAM stay.
 */
#ifndef POET_SLICES_H
#define POET_SLICES_H

#include "port.h"

#ifdef __cplusplus
extern "C" {
#endif

#define POET_BUSY 1 /* not finished: call again */

struct poet;
struct poet_step_result;
struct poet_saved;

/* State of a step or a save in slices; nothing for an application to use. */
struct poet_slices {
  uint8_t work;    /* 0: none, 1: a step, 2: a save */
  bool is_sliced;  /* a slice runs that must end when its budget is used up */
  bool is_polled;  /* poll runs, sliced or not */
  bool is_decoded; /* the statement has begun */
  /* which part of the statement or save comes next, and where it goes on: at an
   * index of its outer loop and a byte of its inner one, with the CRC so far */
  uint8_t part;
  uint32_t index, offset, crc;
  uint32_t blocks;       /* moved of the oldest unfinished transfer */
  uint32_t begin_ticks;  /* of the slice */
  uint32_t budget_ticks; /* of the slice */
  uint32_t digest;       /* of what a commit writes */
  uint32_t found;        /* digest of what it has read back */
  uint32_t cost_ticks;   /* of reading back, in the slices before */
  uint32_t save_ticks, save_erases;
  uint32_t statement[48]; /* struct poet_statement */
};

/* Begin step `step`, as poet_step does. If it is the last step, which has
 * ended, the first call of poll returns its result again. After an error, or
 * after the load of a schedule whose weights stay in RAM, this call reads all
 * of these weights from storage. */
POET_CHECKED int poet_step_begin(struct poet *p, uint32_t step);

/* Run the step for about `budget_us` microseconds: the slice in which the
 * budget is used up is the last one. 0: run one slice. Without a clock (`ticks`
 * of the port), each call runs one slice, whatever the budget. The result is
 * POET_BUSY, 0 after the end of the step, or an error, which ends the step. A
 * call that would wait for a transfer of the port returns POET_BUSY at once.
 * `result` is set by the call that ends the step. wrong_step: no step was
 * begun. */
POET_CHECKED int poet_step_poll(struct poet *p, uint32_t budget_us,
                                struct poet_step_result *result);

/* Begin a save, as poet_save does, and go on with it. A call of poll writes one
 * block (with one cached block, at most two), reads at most two, or erases one
 * unit. wrong_step: no save was begun. */
POET_CHECKED int poet_save_begin(struct poet *p);
POET_CHECKED int poet_save_poll(struct poet *p, struct poet_saved *saved);

#ifdef __cplusplus
}
#endif

#endif
