/* state_clock.h - the clocks of a label, as in plan/timeline.py. */
#pragma once

#include "state_moves.h"

/* Time in both lanes and of commits, then for each tensor the ends of its last
   transfers in and out. */
enum { STATE_P, STATE_X, STATE_COMMIT, STATE_ENDS };

size_t state_clock_size(const struct state_problem *problem);
/* Move the clocks past the frees before a run, and past the run. */
void state_clock_run(double *clock, set freed, const struct state_run *run);
/* Return whether no clock is later, for the tensors in RAM. A time before P is
   as good as P. */
bool state_clock_replaces(const double *clock, const double *other, set ram);
