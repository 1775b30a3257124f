/* packing_search.c - an exact search for offsets of blocks below a capacity.

   In a canonical packing, each block lies at 0 or on a block that is alive at
   the same time. Lowering the blocks of any packing makes it canonical, so the
   search looks for canonical packings only. It keeps for each block the least
   offset that is still possible. Rules raise these offsets, section by section;
   a section is a span of time in which the same blocks are alive. A node of the
   search tree takes a block which no unplaced block can lie below. Either the
   block lies at its least offset, or it is higher. When the unplaced blocks
   fall apart into groups that are never alive together, each group is searched
   on its own.

   The search restarts with doubled limits. Blocks that took part in failures
   get more weight and are placed earlier after a restart. Nothing depends on
   time unless `max_seconds` ends the search.

   The ideas of canonical packings, of sections and of groups are those of M. D.
   Moffitt, MiniMalloc (ASPLOS 2023), doi 10.1145/3623278.3624752. Weights are
   those of Boussemart et al. (ECAI 2004). */
#include "packing_rules.h"

#include <time.h>

enum {
  MAX_GROUPS = 16,        /* that one node separates */
  FIRST_LIMIT = 500,      /* nodes until the first restarts */
  RESTARTS_PER_LIMIT = 6, /* then the limit doubles */
  MAX_DOUBLINGS = 40,
  CLOCK_NODES = 64, /* nodes between two looks at the clock */
};
/* Largest relative change of a key, from the second limit on. */
#define NOISE 1.0

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Return a random number of [0, 1), by xorshift64 of Marsaglia (2003). */
static double random_share(struct search *s) {
  s->random ^= s->random << 13;
  s->random ^= s->random >> 7;
  s->random ^= s->random << 17;
  return (double)(s->random >> 11) / 9007199254740992.0;
}

static bool is_forced(const struct search *s, int block) {
  for (int t = s->p->begin[block]; t < s->p->end[block]; t++) {
    if (s->sections[t].lowest == 1) {
      return true;
    }
  }
  return false;
}

/* Return whether block `a` comes before block `b`, which may be -1. */
static bool comes_before(const struct search *s, int a, int b) {
  if (b < 0 || s->blocks[a].low != s->blocks[b].low) {
    return b < 0 || s->blocks[a].low < s->blocks[b].low;
  }
  return s->blocks[a].key > s->blocks[b].key;
}

/* Choose a block that no unplaced block can lie below, as the lowest one. */
static int choose(const struct search *s, int first, int last) {
  int lowest = -1, forced = -1;
  for (int k = first; k < last; k++) {
    const struct block *it = &s->blocks[k];
    if (it->placed || it->low > it->support) {
      continue;
    }
    if (comes_before(s, k, lowest)) {
      lowest = k;
    }
    if (s->forced_first && comes_before(s, k, forced) && is_forced(s, k) &&
        least_end_below(s, k) > it->low) {
      forced = k;
    }
  }
  return forced < 0 ? lowest : forced;
}

static bool is_limit_reached(struct search *s) {
  struct packing_effort *effort = s->effort;
  effort->nodes++;
  if (s->is_final || effort->steps > effort->max_steps ||
      (effort->max_seconds >= 0.0 && effort->nodes % CLOCK_NODES == 0 &&
       seconds() > s->ends_at)) {
    s->is_final = true;
  }
  s->is_over = s->is_final || --s->nodes_left < 0;
  return s->is_over;
}

static bool search_groups(struct search *s, int first, int last);

/* Pack blocks `first` to `last` - 1, which live in one span of time. If they do
   not fit, or if a limit is reached, restore everything and return false. */
static bool search_group(struct search *s, int first, int last) {
  int depth = s->depth;
  size_t before = s->changes;
  while (!is_limit_reached(s)) {
    int block = choose(s, first, last);
    size_t changes = s->changes;
    if (place(s, block) && propagate(s, first, last) &&
        search_groups(s, first, last)) {
      return true;
    }
    undo(s, depth, changes);
    if (s->is_over || !raise_low(s, block, s->blocks[block].low + 1) ||
        !propagate(s, first, last)) {
      break;
    }
  }
  undo(s, depth, before);
  return false;
}

/* Pack the unplaced blocks from `first` to `last` - 1, small groups first. */
static bool search_groups(struct search *s, int first, int last) {
  struct {
    int first, last, count;
  } groups[MAX_GROUPS], group;
  int found = 0, reach = 0;
  for (int k = first; k < last; k++) {
    if (s->blocks[k].placed) {
      continue;
    }
    if (found == 0 || (s->p->begin[k] >= reach && found < MAX_GROUPS)) {
      groups[found].first = k;
      groups[found++].count = 0;
    }
    groups[found - 1].last = k + 1;
    groups[found - 1].count++;
    reach = s->p->end[k] > reach ? s->p->end[k] : reach;
  }
  for (int x = 1; x < found; x++) {
    int y = x;
    for (group = groups[x]; y > 0 && groups[y - 1].count > group.count; y--) {
      groups[y] = groups[y - 1];
    }
    groups[y] = group;
  }
  for (int x = 0; x < found; x++) {
    if (!search_group(s, groups[x].first, groups[x].last)) {
      return false;
    }
  }
  return true;
}

static enum packing_result restart(struct search *s, int number) {
  const struct packing_problem *p = s->p;
  for (int k = 0; k < p->count; k++) {
    double life = p->end[k] - p->begin[k];
    s->blocks[k].key = life * (1.0 + s->blocks[k].weight);
    if (number >= RESTARTS_PER_LIMIT) {
      s->blocks[k].key *= 1.0 + NOISE * random_share(s);
    }
  }
  s->forced_first = number % 2 != 0;
  s->is_over = false;
  int doublings = number / RESTARTS_PER_LIMIT;
  s->nodes_left = (int64_t)FIRST_LIMIT
                  << (doublings < MAX_DOUBLINGS ? doublings : MAX_DOUBLINGS);
  if (propagate(s, 0, p->count) && search_groups(s, 0, p->count)) {
    return PACKING_FOUND;
  }
  undo(s, 0, 0);
  return s->is_over ? PACKING_UNKNOWN : PACKING_NONE;
}

enum packing_result packing_search(const struct packing_problem *problem,
                                   struct packing_effort *effort,
                                   int64_t *offsets) {
  struct search s = {.p = problem,
                     .effort = effort,
                     .random = 1,
                     .dirty_begin = problem->sections};
  enum packing_result result = PACKING_UNKNOWN;
  s.ends_at = effort->max_seconds < 0.0 ? 0.0 : seconds() + effort->max_seconds;
  effort->steps = effort->nodes = 0;
  if (prepare(&s)) {
    for (int number = 0; !s.is_final && result == PACKING_UNKNOWN; number++) {
      result = restart(&s, number);
    }
  }
  for (int k = 0; k < problem->count && result == PACKING_FOUND; k++) {
    offsets[k] = s.blocks[k].low;
  }
  release(&s);
  return result;
}
