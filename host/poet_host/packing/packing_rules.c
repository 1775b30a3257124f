/* packing_rules.c - see packing_rules.h. All rules hold for every canonical
   packing (packing_search.c) that has the placed blocks at their offsets and
   no block below its least offset. */
#include "packing_rules.h"

#include <stdlib.h>

enum { MAX_BLOCKS = 8192 }; /* bounds the depth of recursion */

static void mark_dirty(struct search *s, int block) {
  int begin = s->p->begin[block], end = s->p->end[block];
  for (int t = begin; t < end; t++) {
    s->sections[t].dirty = true;
  }
  s->dirty_begin = begin < s->dirty_begin ? begin : s->dirty_begin;
  s->dirty_end = end > s->dirty_end ? end : s->dirty_end;
}

bool prepare(struct search *s) {
  const struct packing_problem *p = s->p;
  size_t length = 0;
  if (p->count <= 0 || p->count > MAX_BLOCKS || p->sections <= 0) {
    return false;
  }
  for (int k = 0; k < p->count; k++) {
    length += (size_t)(p->end[k] - p->begin[k]);
  }
  s->blocks = calloc((size_t)p->count, sizeof *s->blocks);
  s->sections = calloc((size_t)p->sections, sizeof *s->sections);
  s->stack = calloc((size_t)p->count, sizeof *s->stack);
  int *next = s->pool = calloc(length, sizeof *next);
  if (s->blocks == NULL || s->sections == NULL || s->stack == NULL ||
      next == NULL) {
    return false;
  }
  for (int k = 0; k < p->count; k++) {
    mark_dirty(s, k);
    for (int t = p->begin[k]; t < p->end[k]; t++) {
      s->sections[t].unplaced++;
      s->sections[t].size += p->size[k];
    }
  }
  for (int t = 0; t < p->sections; t++) {
    s->sections[t].blocks = next;
    next += s->sections[t].unplaced;
    s->sections[t].unplaced = 0;
  }
  for (int k = 0; k < p->count; k++) {
    for (int t = p->begin[k]; t < p->end[k]; t++) {
      struct section *it = &s->sections[t];
      it->blocks[it->unplaced++] = k;
    }
  }
  return true;
}

void release(struct search *s) {
  free(s->blocks);
  free(s->sections);
  free(s->stack);
  free(s->trail);
  free(s->pool);
}

static void remember(struct search *s, int block) {
  if (s->changes == s->max_changes) {
    size_t size = 2 * s->max_changes + 1024;
    struct change *trail = realloc(s->trail, size * sizeof *trail);
    if (trail == NULL) { /* the end of the search: no change will be undone */
      s->is_final = s->is_over = true;
      return;
    }
    s->trail = trail;
    s->max_changes = size;
  }
  s->trail[s->changes++] =
      (struct change){block, s->blocks[block].low, s->blocks[block].support};
}

bool raise_low(struct search *s, int block, int64_t low) {
  if (low > s->blocks[block].low) {
    remember(s, block);
    s->blocks[block].low = low;
    mark_dirty(s, block);
  }
  if (s->blocks[block].low > s->p->latest[block]) {
    s->blocks[block].weight += 1.0;
    return false;
  }
  return true;
}

/* Sort blocks by least offset. They are nearly sorted. */
static void sort_by_low(const struct search *s, int *blocks, int count) {
  for (int x = 1; x < count; x++) {
    int block = blocks[x], y = x;
    for (; y > 0 && s->blocks[blocks[y - 1]].low > s->blocks[block].low; y--) {
      blocks[y] = blocks[y - 1];
    }
    blocks[y] = block;
  }
}

/* The least height of a stack of blocks, which are sorted by least offset. */
static int64_t stacked(const struct search *s, const int *blocks, int count) {
  int64_t end = 0;
  for (int x = 0; x < count; x++) {
    int64_t low = s->blocks[blocks[x]].low;
    end = (low > end ? low : end) + s->p->size[blocks[x]];
  }
  return end;
}

static void note_end(const struct search *s, struct section *it, int block) {
  int64_t end = s->blocks[block].low + s->p->size[block];
  if (end < it->least_end) {
    it->second_end = it->least_end;
    it->least_end = end;
    it->least_block = block;
  } else if (end < it->second_end) {
    it->second_end = end;
  }
}

/* Apply the rules of one section. Return false if its blocks do not fit. */
static bool check_section(struct search *s, int section) {
  struct section *it = &s->sections[section];
  int *blocks = it->blocks, count = it->unplaced, lowest = 0;
  s->effort->steps += count;
  it->least_end = it->second_end = INT64_MAX;
  it->least_block = -1;
  sort_by_low(s, blocks, count);
  if (stacked(s, blocks, count) > s->p->capacity) {
    for (int x = 0; x < count; x++) {
      s->blocks[blocks[x]].weight += 1.0 / count;
    }
    return false;
  }
  /* The lowest block has all others above it. A block that cannot be the lowest
     one lies above one that can. */
  while (lowest < count &&
         s->blocks[blocks[lowest]].low + it->size <= s->p->capacity) {
    note_end(s, it, blocks[lowest++]);
  }
  it->lowest = lowest;
  int64_t end = it->least_end;
  for (int x = lowest; x < count; x++) {
    if (!raise_low(s, blocks[x], end)) {
      return false;
    }
  }
  for (int x = lowest; x < count; x++) {
    note_end(s, it, blocks[x]);
  }
  return true;
}

int64_t least_end_below(const struct search *s, int block) {
  int64_t least = INT64_MAX;
  for (int t = s->p->begin[block]; t < s->p->end[block]; t++) {
    int64_t end = s->sections[t].least_block == block
                      ? s->sections[t].second_end
                      : s->sections[t].least_end;
    least = end < least ? end : least;
  }
  return least;
}

bool propagate(struct search *s, int first, int last) {
  do {
    while (s->dirty_begin < s->dirty_end) {
      int begin = s->dirty_begin, end = s->dirty_end;
      s->dirty_begin = s->p->sections;
      s->dirty_end = 0;
      for (int t = begin; t < end; t++) {
        if (!s->sections[t].dirty) {
          continue;
        }
        s->sections[t].dirty = false;
        if (!check_section(s, t)) {
          s->sections[t].dirty = true;
          s->dirty_begin = begin < s->dirty_begin ? begin : s->dirty_begin;
          s->dirty_end = end > s->dirty_end ? end : s->dirty_end;
          return false;
        }
      }
    }
    /* A block that is higher than its support needs a block below it that is
     * not placed yet. */
    for (int k = first; k < last; k++) {
      if (!s->blocks[k].placed && s->blocks[k].low > s->blocks[k].support &&
          !raise_low(s, k, least_end_below(s, k))) {
        return false;
      }
    }
  } while (s->dirty_begin < s->dirty_end);
  return true;
}

bool place(struct search *s, int block) {
  int64_t size = s->p->size[block], end = s->blocks[block].low + size;
  bool fits = true;
  s->stack[s->depth++] = block;
  s->blocks[block].placed = true;
  mark_dirty(s, block);
  for (int t = s->p->begin[block]; t < s->p->end[block]; t++) {
    int *blocks = s->sections[t].blocks, at = 0,
        count = --s->sections[t].unplaced;
    while (blocks[at] != block) {
      at++;
    }
    blocks[at] = blocks[count];
    blocks[count] = block;
    s->sections[t].size -= size;
    s->effort->steps += count;
    for (int x = 0; x < count; x++) {
      int k = blocks[x];
      if (end > s->blocks[k].support) {
        remember(s, k);
        s->blocks[k].support = end;
        fits = raise_low(s, k, end) && fits;
      }
    }
  }
  return fits;
}

void undo(struct search *s, int depth, size_t changes) {
  while (s->depth > depth) {
    int block = s->stack[--s->depth];
    s->blocks[block].placed = false;
    mark_dirty(s, block);
    for (int t = s->p->begin[block]; t < s->p->end[block]; t++) {
      s->sections[t].unplaced++;
      s->sections[t].size += s->p->size[block];
    }
  }
  while (s->changes > changes) {
    const struct change *it = &s->trail[--s->changes];
    s->blocks[it->block].low = it->low;
    s->blocks[it->block].support = it->support;
    mark_dirty(s, it->block);
  }
}
