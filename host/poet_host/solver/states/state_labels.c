/* state_labels.c - the labels of a search, by state and in order. */
#include "state_labels.h"

#include <stdlib.h>

/* Of labels with the same bound, the cheapest comes first, so that it need not
   replace another one that has been expanded. */
static bool comes_before(const struct state_search *s, struct entry a,
                         struct entry b) {
  const struct label *one = &s->labels[a.label], *other = &s->labels[b.label];
  if (a.least != b.least) {
    return a.least < b.least;
  }
  if (one->cost != other->cost) {
    return one->cost < other->cost;
  }
  return one->stage != other->stage ? one->stage > other->stage
                                    : a.label > b.label;
}

void state_push(struct state_search *s, struct entry it) {
  size_t k = s->waiting++;
  for (; k > 0 && comes_before(s, it, s->heap[(k - 1) / 2]); k = (k - 1) / 2) {
    s->heap[k] = s->heap[(k - 1) / 2];
  }
  s->heap[k] = it;
}

struct entry state_pop(struct state_search *s) {
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

int32_t *state_slot(const struct state_search *s, int32_t stage, set ram,
                    set storage) {
  uint64_t k = state_hash(stage, ram, storage);
  for (;; k++) {
    int32_t *head = &s->heads[k & (s->slots - 1)];
    const struct label *other = &s->labels[*head < 0 ? 0 : *head];
    if (*head < 0 || (other->stage == stage && set_equal(other->ram, ram) &&
                      set_equal(other->storage, storage))) {
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
      const struct label *it = &s->labels[old[k]];
      *state_slot(s, it->stage, it->ram, it->storage) = old[k];
    }
  }
  free(old);
  return true;
}

/* Make room for labels. What has been moved stays valid without memory. */
static bool grow_labels(struct state_search *s, size_t room) {
  if (room > INT32_MAX) {
    return false;
  }
  struct label *labels = realloc(s->labels, room * sizeof *labels);
  if (labels == NULL) {
    return false;
  }
  s->labels = labels;
  struct entry *heap = realloc(s->heap, room * sizeof *heap);
  if (heap == NULL) {
    return false;
  }
  s->heap = heap;
  double *clocks =
      realloc(s->clocks, (room * state_stride(s) + 1) * sizeof *clocks);
  if (clocks == NULL) {
    return false;
  }
  s->clocks = clocks;
  s->room = room;
  return true;
}

bool state_grow(struct state_search *s) {
  if (s->count + 1 >= s->room &&
      !grow_labels(s, s->room ? 2 * s->room : 1024)) {
    return false;
  }
  return 2 * s->states < s->slots || grow_slots(s);
}
