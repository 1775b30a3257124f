/* state_search.c - a cheapest path over the states of a step, by A*.

   A state has a stage, the tensors in RAM and those on storage. Runs lead from
   state to state. Before a run, only a minimal set of tensors leaves RAM, and
   only if it needs the room. A label is one way to reach a state: a cost, and
   if time matters, the clocks of both lanes. A label that costs no more and is
   not later in any clock replaces another one of the same state.

   Labels are expanded in the order of their cost plus an estimate, which is
   never above the cost from there to the end. So the estimate of each label
   that is expanded bounds all paths, and the first label of the last stage is a
   cheapest path. */
#include "state_labels.h"

#include <math.h>
#include <stdlib.h>

static double later(double a, double b) {
  return a > b ? a : b;
}

/* Return the least cost from a label on, by the search for the coarse tensors.
   A path through its state costs at least the bound of that search. */
static double rest_of(const struct state_search *s, const struct label *it) {
  const struct state_search *coarser = s->coarser;
  const struct state_problem *p = coarser->p;
  set ram = set_and(it->ram, p->useful[it->stage]);
  set storage = set_and(it->storage, p->usable[it->stage]);
  int32_t label = *state_slot(coarser, it->stage, ram, storage);
  const struct label *other = &coarser->labels[label < 0 ? 0 : label];
  return label < 0 ? 0.0 : other->least - other->cost;
}

/* Return the cost of paging in these tensors. */
static double cost_of(const struct state_problem *p, set tensors) {
  double cost = 0.0;
  while (set_any(tensors)) {
    cost += p->page_in[set_pop(&tensors)];
  }
  return cost;
}

/* Return the least cost of all paths with a label. */
static double least_of(const struct state_search *s, const struct label *it,
                       const double *clock) {
  const struct state_problem *p = s->p;
  set due = set_minus(p->due[it->stage], it->ram), fine = due;
  if (s->coarser != NULL) {
    fine = set_minus(due, s->coarser->p->due[it->stage]);
  }
  double rest = p->rest[it->stage] + cost_of(p, set_minus(due, fine));
  if (s->coarser != NULL) {
    rest = later(rest, rest_of(s, it));
  }
  double least = it->cost + rest + cost_of(p, fine);
  if (p->timed) {
    double end = later(clock[STATE_P] + p->rest_us[it->stage], clock[STATE_X]);
    if (end + clock[STATE_COMMIT] > p->latest_us) {
      return INFINITY;
    }
    least += p->value_per_us * (end + clock[STATE_COMMIT] * p->commit_share);
  }
  return least;
}

/* Return whether label `a` costs no more than label `b` of the same state, and
   is not later. */
static bool replaces(const struct state_search *s, size_t a, size_t b) {
  return s->labels[a].cost <= s->labels[b].cost &&
         (!s->p->timed ||
          state_clock_replaces(state_clock_of(s, a), state_clock_of(s, b),
                               s->labels[a].ram));
}

/* Add the label that was written after the last one, unless another one of
   its state replaces it. */
static void add(struct state_search *s) {
  struct label *it = &s->labels[s->count];
  it->least = later(later(it->least, s->bound),
                    least_of(s, it, state_clock_of(s, s->count)));
  if (it->least >= s->upper) {
    return;
  }
  int32_t *head = state_slot(s, it->stage, it->ram, it->storage);
  s->states += *head < 0;
  for (int32_t *next = head; *next >= 0;) {
    struct label *other = &s->labels[*next];
    if (replaces(s, (size_t)*next, s->count)) {
      return;
    }
    if (replaces(s, s->count, (size_t)*next)) {
      other->is_dead = true;
      *next = other->same;
    } else {
      next = &other->same;
    }
  }
  it->same = *head;
  it->is_dead = false;
  *head = (int32_t)s->count;
  state_push(s, (struct entry){it->least, *head});
  s->count++;
}

/* Return the label after a move, with these tensors in RAM when it begins. */
static struct label after(const struct state_search *s, set ram) {
  const struct state_problem *p = s->p;
  const struct state_run *run = &p->run[s->move->run];
  const struct label *from = &s->labels[s->from];
  set missing = set_minus(run->needs, from->ram);
  struct label it = {.cost = from->cost + run->cost + cost_of(p, missing),
                     .least = from->least,
                     .parent = s->from,
                     .run = s->move->run,
                     .stage = s->move->next};
  it.ram = set_and(set_minus(set_or(ram, run->makes), run->drops),
                   p->useful[it.stage]);
  it.storage = set_and(set_or(from->storage, run->stores), p->usable[it.stage]);
  return it;
}

static void arrive(void *context, set ram) {
  struct state_search *s = context;
  if (s->is_full || !state_grow(s)) {
    s->is_full = true;
    return;
  }
  s->labels[s->count] = after(s, ram);
  if (s->p->timed) {
    double *clock = state_clock_of(s, s->count);
    const double *before = state_clock_of(s, (size_t)s->from);
    for (size_t k = 0; k < state_stride(s); k++) {
      clock[k] = before[k];
    }
    state_clock_run(clock, set_minus(s->labels[s->from].ram, ram),
                    &s->p->run[s->move->run]);
  }
  add(s);
}

static bool is_possible(const struct state_problem *p, const struct label *it,
                        const struct state_move *move) {
  const struct state_run *run = &p->run[move->run];
  if (set_any(set_minus(run->reads, it->storage)) ||
      set_any(set_and(run->forbids, it->storage))) {
    return false;
  }
  if (move->next == it->stage && !set_any(set_minus(run->makes, it->ram)) &&
      !set_any(set_minus(run->stores, it->storage))) {
    return false; /* it changes nothing */
  }
  set missing = set_minus(run->needs, it->ram);
  if (set_any(missing) && p->timed) {
    return false;
  }
  while (set_any(missing)) {
    int i = set_pop(&missing);
    if (!set_has(it->storage, i) || p->page_in[i] < 0.0) {
      return false;
    }
  }
  return true;
}

static void expand(struct state_search *s, int32_t label, state_visit *visit) {
  const struct state_problem *p = s->p;
  const struct label it = s->labels[label];
  s->from = label;
  for (int k = p->first[it.stage]; k < p->first[it.stage + 1]; k++) {
    s->move = &p->move[k];
    const struct state_run *run = &p->run[s->move->run];
    if (is_possible(p, &it, s->move)) {
      set ram = set_or(set_minus(it.ram, run->absent), run->needs);
      state_each_room(p, ram, run->needs, run->own_bytes, run->own_padding,
                      visit, s);
    }
  }
}

struct state_search *state_search_new(const struct state_problem *problem,
                                      const struct state_search *coarser) {
  struct state_search *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return NULL;
  }
  s->p = problem;
  s->coarser = coarser;
  s->goal = -1;
  s->upper = INFINITY;
  if (!state_grow(s)) {
    state_search_free(s);
    return NULL;
  }
  s->labels[0] = (struct label){
      .ram = problem->ram, .storage = problem->storage, .parent = -1};
  for (size_t k = 0; k < state_stride(s); k++) {
    s->clocks[k] = 0.0;
  }
  add(s);
  return s;
}

/* Note the least cost of a move from a label, and of all paths after it. */
static void look_back(void *context, set ram) {
  struct state_search *s = context;
  struct label it = after(s, ram);
  int32_t known = *state_slot(s, it.stage, it.ram, it.storage);
  const struct label *other = &s->labels[known < 0 ? 0 : known];
  double rest =
      known < 0 ? least_of(s, &it, NULL) - it.cost : other->least - other->cost;
  double least = it.cost + rest;
  s->best = least < s->best ? least : s->best;
}

static int compare(const void *one, const void *other) {
  const struct entry *a = one, *b = other;
  return (a->least < b->least) - (a->least > b->least);
}

bool state_search_back_up(struct state_search *search) {
  struct state_search *s = search;
  struct entry *order = malloc(s->count * sizeof *order);
  size_t count = 0;
  if (order == NULL) {
    return false;
  }
  for (size_t k = 0; k < s->count; k++) {
    struct label *it = &s->labels[k];
    it->least = later(it->least, s->bound);
    if (it->is_expanded && !it->is_dead) {
      order[count++] = (struct entry){
          it->stage + it->cost / (1.0 + s->bound * 2), (int32_t)k};
    }
  }
  qsort(order, count, sizeof *order, compare);
  for (size_t k = 0; k < count; k++) {
    struct label *it = &s->labels[order[k].label];
    s->best = INFINITY;
    expand(s, order[k].label, look_back);
    it->least = later(it->least, s->best);
  }
  free(order);
  s->coarser = NULL;
  return true;
}

enum state_result state_search_run(struct state_search *search, int64_t labels,
                                   double upper) {
  struct state_search *s = search;
  size_t most = s->count + (size_t)labels;
  s->upper = upper;
  while (s->count < most && !s->is_full) {
    struct entry best =
        s->waiting ? state_pop(s) : (struct entry){INFINITY, -1};
    if (best.least >= upper) {
      s->bound = later(s->bound, upper);
      s->waiting = 0;
      return STATES_NONE;
    }
    if (s->labels[best.label].is_dead) {
      continue;
    }
    s->bound = later(s->bound, best.least);
    if (s->labels[best.label].stage == s->p->stages) {
      s->goal = best.label;
      return STATES_FOUND;
    }
    s->labels[best.label].is_expanded = true;
    expand(s, best.label, arrive);
  }
  return s->is_full ? STATES_NO_MEMORY : STATES_LIMIT;
}

double state_search_bound(const struct state_search *search) {
  return search->bound;
}

int64_t state_search_labels(const struct state_search *search) {
  return (int64_t)search->count;
}

int32_t state_search_path(const struct state_search *search,
                          struct state_step *steps, int32_t most) {
  int32_t count = 0;
  for (int32_t k = search->goal; k > 0; k = search->labels[k].parent) {
    count++;
  }
  int32_t place = count;
  for (int32_t k = search->goal; k > 0; k = search->labels[k].parent) {
    const struct label *it = &search->labels[k];
    const struct label *before = &search->labels[it->parent];
    const struct state_run *run = &search->p->run[it->run];
    if (--place < most) {
      set lost = set_minus(set_minus(before->ram, it->ram), run->drops);
      set made = set_and(before->ram, run->absent);
      steps[place] = (struct state_step){before->stage, it->run,
                                         set_minus(run->needs, before->ram),
                                         set_or(lost, made)};
    }
  }
  return count;
}

void state_search_free(struct state_search *search) {
  if (search != NULL) {
    free(search->labels);
    free(search->clocks);
    free(search->heap);
    free(search->heads);
    free(search);
  }
}
