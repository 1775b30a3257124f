/*
 * planned.c - which tensors are on storage, and which transfers may be
 * unfinished, after the statements of the plan that were decoded so far.
 *
 * State: memory.bitmap, decoder.queued, .finished, .queue_max and .kept, and
 * the fields `planned_...` of memory.queue (decoder.c).
 */
#include <string.h>

#include "plan.h"

void poet_begin_storage(struct poet *p) {
  memset(p->memory.bitmap, 0, (p->model.tensor_count + 31u) / 32 * 4);
  for (uint32_t i = 0; !poet_in_ram(p) && i < p->model.stored_count; i++) {
    p->memory.bitmap[i / 32] |= 1u << (i & 31);
  }
}

bool poet_on_storage(const struct poet *p, uint32_t tensor) {
  return p->memory.bitmap[tensor / 32] >> (tensor & 31) & 1;
}

void poet_put_on_storage(struct poet *p, uint32_t tensor, uint8_t flags) {
  if (!poet_on_storage(p, tensor)) {
    p->memory.bitmap[tensor / 32] |= 1u << (tensor & 31);
    p->decoder.kept =
        (uint16_t)(p->decoder.kept + ((flags & POET_FLAG_KEEP) != 0));
  }
}

void poet_take_from_storage(struct poet *p, uint32_t tensor) {
  p->memory.bitmap[tensor / 32] &= ~(1u << (tensor & 31));
}

/* A new value that no commit names must not take the place of one that it
 * does. */
int poet_check_slots(struct poet *p, const struct poet_tensor *record) {
  return record->place == POET_PLACE_NEXT && p->plan.commit_every > 1 &&
                 !(p->model.flags & POET_MODEL_FOUR_SLOTS)
             ? poet_refuse(p)
             : 0;
}

bool poet_in_flight(struct poet *p, uint32_t tensor, bool arrivals) {
  for (uint32_t i = p->decoder.finished; i != p->decoder.queued; i++) {
    const struct poet_transfer *transfer = poet_queue_slot(p, i);
    if (transfer->planned_tensor == tensor &&
        !(arrivals && transfer->planned_write)) {
      return true;
    }
  }
  return false;
}

int poet_enqueue(struct poet *p, uint16_t tensor, bool write) {
  struct poet_decoder *d = &p->decoder;
  const uint32_t unfinished = d->queued - d->finished;
  if (unfinished >= p->plan.queue_max) {
    return poet_refuse(p);
  }
  struct poet_transfer *transfer = poet_queue_slot(p, d->queued);
  transfer->planned_tensor = tensor;
  transfer->planned_write = write;
  d->queued++;
  if (unfinished + 1 > d->queue_max) {
    d->queue_max = (uint16_t)(unfinished + 1);
  }
  return 0;
}
