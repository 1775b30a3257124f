/*
 * arena.c - the arena, and the list of ranges in use (residents).
 *
 * State: memory.residents, the first decoder.resident_count entries, and the
 * maxima in the decoder. The list is valid from poet_decode_start until the end
 * of the load or step. It is sorted by offset and its ranges are disjoint:
 * poet_insert refuses anything else, so no plan can make two tensors overlap.
 */
#include <string.h>

#include "runtime.h"

uint8_t *poet_arena(struct poet *p, uint32_t offset, uint32_t size) {
  if (offset > p->memory.arena_bytes || size > p->memory.arena_bytes - offset) {
    return NULL;
  }
  p->dirty_bytes = p->memory.arena_bytes;
  return p->memory.arena + offset;
}

static uint32_t end_of(const struct poet_resident *resident) {
  return resident->offset + resident->size_bytes;
}

static uint32_t aligned_end(const struct poet_resident *resident) {
  return (end_of(resident) + 3) & ~3u;
}

uint32_t poet_find(const struct poet *p, uint32_t tensor) {
  uint32_t i = 0;
  while (i < p->decoder.resident_count &&
         p->memory.residents[i].tensor != tensor) {
    i++;
  }
  return i;
}

bool poet_is_resident(const struct poet *p, uint32_t tensor) {
  return poet_find(p, tensor) < p->decoder.resident_count;
}

int poet_insert(struct poet *p, uint16_t tensor, uint32_t offset,
                uint32_t size_bytes) {
  struct poet_resident *list = p->memory.residents;
  struct poet_decoder *d = &p->decoder;
  uint32_t i = 0;
  if (offset > p->plan.arena_bytes ||
      size_bytes > p->plan.arena_bytes - offset ||
      d->resident_count >= p->plan.resident_max) {
    return poet_refuse(p);
  }
  while (i < d->resident_count && list[i].offset < offset) {
    i++;
  }
  if ((i > 0 && end_of(&list[i - 1]) > offset) ||
      (i < d->resident_count && offset + size_bytes > list[i].offset)) {
    return poet_refuse(p);
  }
  memmove(list + i + 1, list + i, (d->resident_count - i) * sizeof *list);
  list[i] = (struct poet_resident){offset, size_bytes, tensor, 0};
  d->resident_count++;
  if (d->resident_count > d->resident_max) {
    d->resident_max = d->resident_count;
  }
  if (offset + size_bytes > d->peak_bytes) {
    d->peak_bytes = offset + size_bytes;
  }
  return 0;
}

void poet_drop(struct poet *p, uint32_t i) {
  struct poet_resident *list = p->memory.residents;
  p->decoder.resident_count--;
  memmove(list + i, list + i + 1,
          (p->decoder.resident_count - i) * sizeof *list);
}

int poet_take_resident(struct poet *p, uint32_t *index) {
  const uint32_t count = p->decoder.resident_count;
  TRY(poet_take_bits(p, poet_bit_width(count), index));
  return *index < count ? 0 : poet_refuse(p);
}

static uint32_t first_fit(const struct poet *p, uint32_t size_bytes) {
  uint32_t offset = 0;
  for (uint32_t i = 0; i < p->decoder.resident_count; i++) {
    const struct poet_resident *resident = &p->memory.residents[i];
    if (resident->offset - offset >= size_bytes) {
      break;
    }
    offset = aligned_end(resident);
  }
  return offset;
}

int poet_take_offset(struct poet *p, uint32_t *offset) {
  const uint32_t units =
      p->plan.arena_bytes / 4 + (p->plan.arena_bytes % 4 != 0);
  TRY(poet_take_bits(p, poet_bit_width(units), offset));
  if (*offset >= units) {
    return poet_refuse(p);
  }
  *offset *= 4;
  return 0;
}

int poet_take_place(struct poet *p, uint32_t size_bytes, uint32_t *offset) {
  uint32_t bit, index;
  TRY(poet_take_bits(p, 1, &bit));
  if (!bit) {
    *offset = first_fit(p, size_bytes);
    return 0;
  }
  TRY(poet_take_bits(p, 1, &bit));
  if (!bit) {
    TRY(poet_take_resident(p, &index));
    *offset = aligned_end(&p->memory.residents[index]);
  } else {
    TRY(poet_take_offset(p, offset));
  }
  return 0;
}

int poet_place(struct poet *p, uint16_t tensor, uint32_t size_bytes,
               uint32_t *offset) {
  TRY(poet_take_place(p, size_bytes, offset));
  return poet_insert(p, tensor, *offset, size_bytes);
}
