/* state_moves.c - which tensors leave RAM to make room for a run. */
#include "state_moves.h"

struct room {
  const struct state_problem *p;
  state_visit *visit;
  void *context;
  int64_t own_padding;
  int count;                        /* of the tensors that may leave */
  int item[STATE_TENSORS];          /* these tensors, the largest first */
  int64_t after[STATE_TENSORS + 1]; /* bytes of each one and all after it */
  int depth;                        /* tensors that have left */
  int gone[STATE_TENSORS];
};

static bool fits(const struct room *r, set ram, int64_t bytes) {
  int64_t padding = 0;
  if (bytes <= r->p->ram_bytes || r->p->padding == NULL) {
    return bytes <= r->p->ram_bytes;
  }
  padding = r->own_padding;
  while (set_any(ram)) {
    int64_t other = r->p->padding[set_pop(&ram)];
    padding = other > padding ? other : padding;
  }
  return bytes - padding <= r->p->ram_bytes;
}

/* Let tensors from the k-th one on leave. `bytes`: of `ram` and the run. */
static void leave(struct room *r, int k, set ram, int64_t bytes) {
  if (fits(r, ram, bytes)) {
    for (int d = 0; d < r->depth; d++) {
      int i = r->gone[d];
      if (fits(r, set_or(ram, set_one(i)), bytes + r->p->size[i])) {
        return;
      }
    }
    r->visit(r->context, ram);
    return;
  }
  for (; k < r->count; k++) {
    /* Without all others, nothing is left but what is pinned. */
    if (r->p->padding == NULL && bytes - r->after[k] > r->p->ram_bytes) {
      return;
    }
    int i = r->item[k];
    r->gone[r->depth++] = i;
    leave(r, k + 1, set_minus(ram, set_one(i)), bytes - r->p->size[i]);
    r->depth--;
  }
}

void state_each_room(const struct state_problem *problem, set ram, set pinned,
                     int64_t own_bytes, int64_t own_padding, state_visit *visit,
                     void *context) {
  struct room r = {.p = problem,
                   .visit = visit,
                   .context = context,
                   .own_padding = own_padding};
  int64_t bytes = own_bytes;
  for (set left = ram; set_any(left);) {
    int i = set_pop(&left), k = r.count;
    int64_t size = problem->size[i];
    bytes += size;
    if (size == 0 || set_has(pinned, i)) {
      continue;
    }
    for (r.count++; k > 0 && problem->size[r.item[k - 1]] < size; k--) {
      r.item[k] = r.item[k - 1];
    }
    r.item[k] = i;
  }
  for (int k = r.count; k > 0; k--) {
    r.after[k - 1] = r.after[k] + problem->size[r.item[k - 1]];
  }
  leave(&r, 0, ram, bytes);
}

uint64_t state_hash(int stage, set a, set b) {
  const uint64_t words[] = {a.words[0], a.words[1], b.words[0], b.words[1]};
  uint64_t hash = (uint64_t)stage;
  for (int k = 0; k < 4; k++) {
    hash = (hash ^ words[k]) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  return hash;
}
