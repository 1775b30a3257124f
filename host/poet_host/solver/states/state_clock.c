/* state_clock.c - when the runs of a path begin and end in both lanes. */
#include "state_clock.h"

enum { PROCESSOR = 1, TRANSFERS = 2 };

static double later(double a, double b) {
  return a > b ? a : b;
}

static double *arrival(double *clock, int tensor) {
  return clock + STATE_ENDS + 2 * tensor;
}

static double *written(double *clock, int tensor) {
  return arrival(clock, tensor) + 1;
}

size_t state_clock_size(const struct state_problem *problem) {
  return STATE_ENDS + 2 * (size_t)problem->tensors;
}

static void transfer(double *clock, const struct state_run *run) {
  double end = later(clock[STATE_P], clock[STATE_X]);
  for (set left = run->needs; set_any(left);) {
    end = later(end, *arrival(clock, set_pop(&left)));
  }
  end += run->transfers_us;
  clock[STATE_X] = end;
  clock[STATE_P] += run->processor_us;
  for (set left = run->makes; set_any(left);) {
    *arrival(clock, set_pop(&left)) = end;
  }
  for (set left = run->stores; set_any(left);) {
    *written(clock, set_pop(&left)) = end;
  }
}

static void compute(double *clock, const struct state_run *run) {
  double begin = clock[STATE_P];
  if (run->lanes & TRANSFERS) {
    begin = later(begin, clock[STATE_X]);
  }
  for (set left = run->needs; set_any(left);) {
    begin = later(begin, *arrival(clock, set_pop(&left)));
  }
  for (set left = run->drops; set_any(left);) {
    begin = later(begin, *written(clock, set_pop(&left)));
  }
  clock[STATE_P] = begin + run->processor_us;
  if (run->lanes & TRANSFERS) {
    clock[STATE_X] = clock[STATE_P];
  }
}

void state_clock_run(double *clock, set freed, const struct state_run *run) {
  while (set_any(freed)) {
    int i = set_pop(&freed);
    double idle = later(*arrival(clock, i), *written(clock, i));
    clock[STATE_P] = later(clock[STATE_P], idle);
  }
  clock[STATE_COMMIT] += run->commit_us;
  if (run->lanes == TRANSFERS) {
    transfer(clock, run);
  } else if (run->lanes & PROCESSOR) {
    compute(clock, run);
  }
}

static bool ends_by(const double *clock, const double *other, int k) {
  return later(clock[STATE_P], clock[k]) <= later(other[STATE_P], other[k]);
}

bool state_clock_replaces(const double *clock, const double *other, set ram) {
  bool by = clock[STATE_COMMIT] <= other[STATE_COMMIT] &&
            ends_by(clock, other, STATE_P) && ends_by(clock, other, STATE_X);
  while (by && set_any(ram)) {
    int k = STATE_ENDS + 2 * set_pop(&ram);
    by = ends_by(clock, other, k) && ends_by(clock, other, k + 1);
  }
  return by;
}
