/* state_table.c - the least cost from each set of coarse tensors in RAM.

   The table leaves out what is on storage: instead, a read from storage in a
   stage costs a price. All coarse sets that fit RAM are listed once, with the
   runs that lead from one to another. Then the table is filled for any prices,
   from the last stage to the first one. Within a stage, runs lead back and
   forth, so its sets are visited until no cost falls any more. A price is paid
   once in a stage: a set has one cost for each set of prices paid. */
#include "state_table.h"

#include <math.h>
#include <stdlib.h>

static set parts(const struct state_table *t, set a) {
  return set_and(a, t->coarse);
}

static int64_t bytes_of(const struct state_problem *p, set a) {
  int64_t bytes = 0;
  while (set_any(a)) {
    bytes += p->size[set_pop(&a)];
  }
  return bytes;
}

/* Return the slot of a set of a stage: with its number, or -1. */
static int32_t *find(const struct state_table *t, int stage, set ram) {
  uint64_t k = state_hash(stage, ram, (set){{0, 0}});
  for (;; k++) {
    int32_t *slot = &t->slots[k & (t->slot_count - 1)];
    if (*slot < 0 || (*slot >= t->first[stage] && *slot < t->first[stage + 1] &&
                      set_equal(t->sets[*slot], ram))) {
      return slot;
    }
  }
}

/* List `ram` with each subset of `others` that fits. Return their number. */
static size_t list(struct state_table *t, set ram, int64_t bytes, set others,
                   size_t count) {
  if (count > t->most) {
    return count;
  }
  if (!set_any(others)) {
    if (t->sets != NULL) {
      t->sets[count] = ram;
    }
    return count + 1;
  }
  int i = set_pop(&others);
  count = list(t, ram, bytes, others, count);
  bytes += t->p->size[i];
  if (bytes <= t->p->ram_bytes) {
    count = list(t, set_or(ram, set_one(i)), bytes, others, count);
  }
  return count;
}

static size_t list_all(struct state_table *t) {
  size_t count = 0;
  for (int k = 0; k <= t->p->stages && count <= t->most; k++) {
    t->first[k] = (int32_t)count;
    count = list(t, (set){{0, 0}}, 0, parts(t, t->p->useful[k]), count);
  }
  t->first[t->p->stages + 1] = (int32_t)count;
  return count;
}

/* Add the edge of a run that begins with these tensors in RAM. */
static void add_edge(void *context, set ram) {
  struct state_table *t = context;
  const struct state_run *run = &t->p->run[t->move->run];
  if (t->edge_count == t->edge_room) {
    size_t room = t->edge_room ? 2 * t->edge_room : 4096;
    void *edges = realloc(t->edges, room * sizeof *t->edges);
    t->is_full |= edges == NULL || room > 16 * t->most;
    t->edges = edges ? edges : t->edges;
    t->edge_room = edges ? room : t->edge_room;
  }
  ram = set_minus(set_or(ram, parts(t, run->makes)), run->drops);
  ram = set_and(ram, t->p->useful[t->move->next]);
  int32_t target = *find(t, t->move->next, ram);
  if (t->is_full || target < 0 || target == t->from) {
    return;
  }
  struct state_edge *edge = &t->edges[t->edge_count++];
  *edge = (struct state_edge){target, t->move->run, 0.0};
  set missing = set_minus(parts(t, run->needs), t->sets[t->from]);
  while (set_any(missing)) {
    edge->page_in += t->p->page_in[set_pop(&missing)];
  }
}

static void add_edges(struct state_table *t, int32_t from) {
  const struct state_problem *p = t->p;
  set ram = t->sets[from];
  for (int k = p->first[t->stage]; k < p->first[t->stage + 1]; k++) {
    t->move = &p->move[k];
    t->from = from;
    const struct state_run *run = &p->run[t->move->run];
    set needs = parts(t, run->needs), missing = set_minus(needs, ram);
    bool is_possible = t->move->next != t->stage ||
                       set_any(set_minus(parts(t, run->makes), ram));
    while (set_any(missing)) {
      is_possible &= p->page_in[set_pop(&missing)] >= 0.0;
    }
    if (is_possible) {
      int64_t own = run->own_bytes + bytes_of(p, set_minus(run->needs, needs));
      state_each_room(p, set_or(set_minus(ram, run->absent), needs), needs, own,
                      0, add_edge, t);
    }
  }
}

static bool fill_edges(struct state_table *t) {
  for (t->stage = 0; t->stage < t->p->stages; t->stage++) {
    for (int32_t k = t->first[t->stage]; k < t->first[t->stage + 1]; k++) {
      t->edge_first[k] = t->edge_count;
      add_edges(t, k);
    }
  }
  for (int32_t k = t->first[t->p->stages]; k <= t->first[t->p->stages + 1];
       k++) {
    t->edge_first[k] = t->edge_count;
  }
  return !t->is_full;
}

static bool prepare(struct state_table *t) {
  const struct state_problem *p = t->p;
  t->first = calloc((size_t)p->stages + 2, sizeof *t->first);
  t->still = calloc((size_t)(p->stages + 1) * (size_t)p->tensors + 1,
                    sizeof *t->still);
  size_t count = t->first ? list_all(t) : SIZE_MAX;
  if (count > t->most || t->still == NULL) {
    return false;
  }
  t->slot_count = 64;
  while (t->slot_count < 2 * count) {
    t->slot_count *= 2;
  }
  t->sets = malloc(count * sizeof *t->sets);
  t->slots = malloc(t->slot_count * sizeof *t->slots);
  t->edge_first = malloc((count + 1) * sizeof *t->edge_first);
  t->value = malloc(count * PAID * sizeof *t->value);
  t->best = malloc(count * PAID * sizeof *t->best);
  if (!t->sets || !t->slots || !t->edge_first || !t->value || !t->best) {
    return false;
  }
  list_all(t);
  for (size_t k = 0; k < t->slot_count; k++) {
    t->slots[k] = -1;
  }
  for (int k = 0; k <= p->stages; k++) {
    for (int32_t n = t->first[k]; n < t->first[k + 1]; n++) {
      *find(t, k, t->sets[n]) = n;
    }
  }
  return fill_edges(t);
}

struct state_table *state_table_new(const struct state_problem *problem,
                                    struct state_set coarse, int64_t most) {
  struct state_table *t = calloc(1, sizeof *t);
  if (t != NULL) {
    t->p = problem;
    t->coarse = coarse;
    t->most = (size_t)most;
    if (prepare(t)) {
      return t;
    }
    state_table_free(t);
  }
  return NULL;
}

/* Return which prices an edge pays: one bit for each of `priced`. */
static int reads_of(const struct state_table *t, const struct state_edge *edge,
                    set ram) {
  const struct state_run *run = &t->p->run[edge->run];
  set read = set_or(run->reads, set_minus(run->needs, ram));
  int bits = 0;
  for (int k = 0; k < t->priced_count; k++) {
    bits |= set_has(read, t->priced[k]) << k;
  }
  return bits;
}

/* Try an edge from a set. Return whether a cost falls. */
static bool relax(struct state_table *t, int32_t from,
                  struct state_edge *edge) {
  bool stays = edge->target < t->first[t->stage + 1];
  int reads = reads_of(t, edge, t->sets[from]);
  bool falls = false;
  for (int paid = 0; paid < 1 << t->priced_count; paid++) {
    double cost = t->cost[edge->run] + edge->page_in;
    for (int k = 0; k < t->priced_count; k++) {
      if ((reads & ~paid) >> k & 1) {
        cost += t->prices[t->stage * t->p->tensors + t->priced[k]];
      }
    }
    int after = stays ? paid | reads : 0;
    cost += t->value[(size_t)edge->target * PAID + (size_t)after];
    size_t place = (size_t)from * PAID + (size_t)paid;
    if (cost < t->value[place]) {
      t->value[place] = cost;
      t->best[place] = edge;
      falls = true;
    }
  }
  return falls;
}

static bool relax_all(struct state_table *t, bool within) {
  bool falls = false;
  for (int32_t k = t->first[t->stage]; k < t->first[t->stage + 1]; k++) {
    for (size_t e = t->edge_first[k]; e < t->edge_first[k + 1]; e++) {
      bool stays = t->edges[e].target < t->first[t->stage + 1];
      if (stays == within) {
        falls |= relax(t, k, &t->edges[e]);
      }
    }
  }
  return falls;
}

/* Choose the tensors that have a price in a stage, and sum up prices. */
static void choose_priced(struct state_table *t) {
  int n = t->p->tensors;
  t->priced_count = 0;
  for (int i = 0; i < n; i++) {
    size_t place = (size_t)(t->stage * n + i);
    t->still[place] = t->still[place + (size_t)n];
    if (t->prices[place] > 0.0 && t->priced_count < PRICED) {
      t->priced[t->priced_count++] = i;
      t->still[place] += t->prices[place];
    }
  }
}

double state_table_price(struct state_table *table, const double *cost,
                         const double *prices) {
  struct state_table *t = table;
  int32_t last = t->p->stages;
  t->cost = cost;
  t->prices = prices;
  for (int32_t k = 0; k < t->first[last + 1]; k++) {
    for (int q = 0; q < PAID; q++) {
      t->value[k * PAID + q] = k < t->first[last] ? INFINITY : 0.0;
      t->best[k * PAID + q] = NULL;
    }
  }
  for (t->stage = last - 1; t->stage >= 0; t->stage--) {
    choose_priced(t);
    relax_all(t, false);
    while (relax_all(t, true)) {
    }
  }
  return state_table_rest(t, 0, t->p->ram, (set){{0, 0}});
}

double state_table_rest(const struct state_table *table, int32_t stage, set ram,
                        set storage) {
  int32_t number =
      *find(table, stage, set_and(parts(table, ram), table->p->useful[stage]));
  double rest = number < 0 ? 0.0 : table->value[(size_t)number * PAID];
  for (set left = parts(table, storage); set_any(left);) {
    rest -= table->still[stage * table->p->tensors + set_pop(&left)];
  }
  return rest;
}

int64_t state_table_edges(const struct state_table *table) {
  return (int64_t)table->edge_count;
}

int32_t state_table_path(const struct state_table *table,
                         struct state_step *steps, int32_t most) {
  const struct state_table *t = table;
  int32_t at = *find(t, 0, parts(t, t->p->ram)), stage = 0, count = 0;
  int paid = 0;
  while (stage < t->p->stages && count < most) {
    const struct state_edge *edge = t->best[at * PAID + paid];
    if (edge == NULL) {
      break;
    }
    const struct state_run *run = &t->p->run[edge->run];
    set missing = set_minus(parts(t, run->needs), t->sets[at]);
    steps[count++] =
        (struct state_step){stage, edge->run, missing, (set){{0, 0}}};
    int32_t next = stage;
    while (edge->target >= t->first[next + 1]) {
      next++;
    }
    set read = set_or(run->reads, missing);
    if (next != stage) {
      paid = 0;
    } else {
      int bit = 0;
      for (int i = 0; i < t->p->tensors && bit < PRICED; i++) {
        if (t->prices[stage * t->p->tensors + i] > 0.0) {
          paid |= set_has(read, i) << bit++;
        }
      }
    }
    at = edge->target;
    stage = next;
  }
  return count;
}

void state_table_free(struct state_table *table) {
  if (table != NULL) {
    free(table->slots);
    free(table->first);
    free(table->sets);
    free(table->edge_first);
    free(table->edges);
    free(table->value);
    free(table->best);
    free(table->still);
    free(table);
  }
}
