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
#include "state_clock.h"
#include "state_table.h"

#include <math.h>
#include <stdlib.h>

struct label {
  set ram, storage;
  double cost, least; /* so far, and of all paths with this label */
  int32_t parent, run, stage;
  int32_t same; /* the next label of the same state; -1: none */
  bool is_dead; /* replaced by another one */
};

struct entry {
  double least;
  int32_t label;
};

struct state_search {
  const struct state_problem *p;
  const struct state_table *table;
  struct label *labels;
  double *clocks; /* of each label, if time matters */
  struct entry *heap;
  int32_t *heads; /* by hash, the first label of each state; -1: none */
  size_t count, room, waiting, states, slots;
  double upper, bound;
  int32_t goal;                  /* the label of the path; -1: none */
  bool is_full;                  /* no memory is left */
  const struct state_move *move; /* that `arrive` follows */
  int32_t from;
};

static size_t stride(const struct state_search *s) {
  return s->p->timed ? state_clock_size(s->p) : 0;
}

static double *clock_of(const struct state_search *s, size_t label) {
  return s->clocks + label * stride(s);
}

static double later(double a, double b) {
  return a > b ? a : b;
}

/* Return the least cost of all paths with a label. */
static double least_of(const struct state_search *s, const struct label *it,
                       const double *clock) {
  const struct state_problem *p = s->p;
  double coarse = 0.0, fine = 0.0;
  for (int i = 0; i < p->tensors; i++) {
    if (p->needed[i] >= it->stage && !set_has(it->ram, i)) {
      if (s->table != NULL && set_has(s->table->coarse, i)) {
        coarse += p->page_in[i];
      } else {
        fine += p->page_in[i];
      }
    }
  }
  double rest = p->rest[it->stage] + coarse;
  if (s->table != NULL) {
    rest = later(rest,
                 state_table_rest(s->table, it->stage, it->ram, it->storage));
  }
  double least = it->cost + later(rest + fine, 0.0);
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
         (!s->p->timed || state_clock_replaces(clock_of(s, a), clock_of(s, b),
                                               s->labels[a].ram));
}

static bool comes_before(const struct state_search *s, struct entry a,
                         struct entry b) {
  int32_t one = s->labels[a.label].stage, other = s->labels[b.label].stage;
  if (a.least != b.least) {
    return a.least < b.least;
  }
  return one != other ? one > other : a.label > b.label;
}

static void push(struct state_search *s, struct entry it) {
  size_t k = s->waiting++;
  for (; k > 0 && comes_before(s, it, s->heap[(k - 1) / 2]); k = (k - 1) / 2) {
    s->heap[k] = s->heap[(k - 1) / 2];
  }
  s->heap[k] = it;
}

static struct entry pop(struct state_search *s) {
  struct entry first = s->heap[0], last = s->heap[--s->waiting];
  size_t k = 0, child;
  while ((child = 2 * k + 1) < s->waiting) {
    if (child + 1 < s->waiting &&
        comes_before(s, s->heap[child + 1], s->heap[child])) {
      child++;
    }
    if (!comes_before(s, s->heap[child], last)) {
      break;
    }
    s->heap[k] = s->heap[child];
    k = child;
  }
  s->heap[k] = last;
  return first;
}

static int32_t *slot_of(const struct state_search *s, const struct label *it) {
  uint64_t k = state_hash(it->stage, it->ram, it->storage);
  for (;; k++) {
    int32_t *head = &s->heads[k & (s->slots - 1)];
    const struct label *other = &s->labels[*head < 0 ? 0 : *head];
    if (*head < 0 ||
        (other->stage == it->stage && set_equal(other->ram, it->ram) &&
         set_equal(other->storage, it->storage))) {
      return head;
    }
  }
}

static bool grow_slots(struct state_search *s) {
  int32_t *old = s->heads;
  size_t slots = s->slots, more = slots ? 4 * slots : 1024;
  int32_t *heads = malloc(more * sizeof *heads);
  if (heads == NULL) {
    return false;
  }
  for (size_t k = 0; k < more; k++) {
    heads[k] = -1;
  }
  s->heads = heads;
  s->slots = more;
  for (size_t k = 0; k < slots; k++) {
    if (old[k] >= 0) {
      *slot_of(s, &s->labels[old[k]]) = old[k];
    }
  }
  free(old);
  return true;
}

/* Make room for one more label. */
static bool grow(struct state_search *s) {
  if (s->count + 1 >= s->room) {
    size_t room = s->room ? 2 * s->room : 1024;
    void *labels = realloc(s->labels, room * sizeof *s->labels);
    s->labels = labels ? labels : s->labels;
    void *heap = realloc(s->heap, room * sizeof *s->heap);
    s->heap = heap ? heap : s->heap;
    void *clocks = realloc(s->clocks, (room * stride(s) + 1) * sizeof(double));
    s->clocks = clocks ? clocks : s->clocks;
    if (!labels || !heap || !clocks || room > INT32_MAX) {
      return false;
    }
    s->room = room;
  }
  return 2 * s->states < s->slots || grow_slots(s);
}

/* Add the label that was written after the last one, unless another one of
   its state replaces it. */
static void add(struct state_search *s) {
  struct label *it = &s->labels[s->count];
  it->least = least_of(s, it, clock_of(s, s->count));
  if (it->least >= s->upper) {
    return;
  }
  int32_t *head = slot_of(s, it);
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
  push(s, (struct entry){it->least, *head});
  s->count++;
}

/* Follow a move from a label, with these tensors in RAM when its run begins. */
static void arrive(void *context, set ram) {
  struct state_search *s = context;
  const struct state_problem *p = s->p;
  const struct state_run *run = &p->run[s->move->run];
  if (s->is_full || !grow(s)) {
    s->is_full = true;
    return;
  }
  const struct label *from = &s->labels[s->from];
  struct label *it = &s->labels[s->count];
  *it = (struct label){.cost = from->cost + run->cost,
                       .parent = s->from,
                       .run = s->move->run,
                       .stage = s->move->next};
  it->ram = set_and(set_minus(set_or(ram, run->makes), run->drops),
                    p->useful[it->stage]);
  it->storage =
      set_and(set_or(from->storage, run->stores), p->usable[it->stage]);
  for (set left = set_minus(run->needs, from->ram); set_any(left);) {
    it->cost += p->page_in[set_pop(&left)];
  }
  if (p->timed) {
    double *clock = clock_of(s, s->count);
    const double *before = clock_of(s, (size_t)s->from);
    for (size_t k = 0; k < stride(s); k++) {
      clock[k] = before[k];
    }
    state_clock_run(clock, set_minus(from->ram, ram), run);
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

static void expand(struct state_search *s, int32_t label) {
  const struct state_problem *p = s->p;
  const struct label it = s->labels[label];
  s->from = label;
  for (int k = p->first[it.stage]; k < p->first[it.stage + 1]; k++) {
    s->move = &p->move[k];
    const struct state_run *run = &p->run[s->move->run];
    if (is_possible(p, &it, s->move)) {
      set ram = set_or(set_minus(it.ram, run->absent), run->needs);
      state_each_room(p, ram, run->needs, run->own_bytes, run->own_padding,
                      arrive, s);
    }
  }
}

struct state_search *state_search_new(const struct state_problem *problem,
                                      const struct state_table *table) {
  struct state_search *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return NULL;
  }
  s->p = problem;
  s->table = table;
  s->goal = -1;
  s->upper = INFINITY;
  if (!grow(s)) {
    state_search_free(s);
    return NULL;
  }
  s->labels[0] = (struct label){
      .ram = problem->ram, .storage = problem->storage, .parent = -1};
  for (size_t k = 0; k < stride(s); k++) {
    s->clocks[k] = 0.0;
  }
  add(s);
  return s;
}

enum state_result state_search_run(struct state_search *search, int64_t labels,
                                   double upper) {
  struct state_search *s = search;
  size_t most = s->count + (size_t)labels;
  s->upper = upper;
  while (s->count < most && !s->is_full) {
    struct entry best = s->waiting ? pop(s) : (struct entry){INFINITY, -1};
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
    expand(s, best.label);
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
