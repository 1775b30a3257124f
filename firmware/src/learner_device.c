/*
 * learner_device.c - what an application lends to a learner, as a port; and the
 * beginning and end of each call.
 */
#include "learning.h"

#if POET_LIBRARY

static uint32_t lent_ticks(void *context) {
  const struct poet_device *device = context;
  return device->micros(device->context);
}

static POET_CHECKED int lent_read(void *context, uint32_t block, void *data,
                                  uint32_t count) {
  const struct poet_device *device = context;
  uint8_t *to = data;
  int error = 0;
  for (; count && !error; count--, to += POET_BLOCK) {
    error = device->read(device->context, block++, to);
  }
  return error;
}

static POET_CHECKED int lent_write(void *context, uint32_t block,
                                   const void *data, uint32_t count) {
  const struct poet_device *device = context;
  const uint8_t *from = data;
  int error = 0;
  for (; count && !error; count--, from += POET_BLOCK) {
    error = device->write(device->context, block++, from);
  }
  return error;
}

static POET_CHECKED int lent_flush(void *context) {
  const struct poet_device *device = context;
  return device->flush ? device->flush(device->context) : 0;
}

static POET_CHECKED int lent_erase(void *context, uint32_t block,
                                   uint32_t count) {
  const struct poet_device *device = context;
  int error = 0;
  for (uint32_t i = 0; i < count && !error; i += device->erase_blocks) {
    error = device->erase(device->context, block + i);
  }
  return error;
}

uint32_t learner_unit(const struct poet_device *device) {
  return device->erase_blocks ? device->erase_blocks : 1;
}

void learner_make_port(struct learning *l) {
  const struct poet_device *device = l->device;
  l->port =
      (struct poet_port){.context = (void *)(uintptr_t)device,
                         .tick_hz = 1000000,
                         .ticks = lent_ticks,
                         .blocks = device->blocks,
                         .read = device->read ? lent_read : NULL,
                         .write = device->write ? lent_write : NULL,
                         .flush = lent_flush,
                         .erase = device->erase_blocks ? lent_erase : NULL,
                         .erase_blocks = (uint16_t)device->erase_blocks};
}

static bool is_interrupt(void) {
#if defined __ARM_ARCH_PROFILE && __ARM_ARCH_PROFILE == 'M'
  uint32_t number;
  __asm__ volatile("mrs %0, ipsr" : "=r"(number));
  return number != 0;
#else
  return false;
#endif
}

bool learner_is_inside(const struct learning *l) {
  return l->inside == INSIDE || is_interrupt();
}

int learner_enter(struct learning *l, bool bus, bool closed) {
  if (learner_is_inside(l)) {
    return POET_ERROR_reentered;
  }
  if (!l->opened || (l->opened != OPENED && !closed)) {
    return POET_ERROR_closed;
  }
  l->inside = INSIDE;
  if (bus && l->device->take_bus && l->device->blocks &&
      l->device->take_bus(l->device->context)) {
    l->inside = 0;
    return POET_BUSY;
  }
  return 0;
}

/* Return the error that stands for another one of the runtime. */
static POET_CHECKED int as_known(int error) {
  switch (error) {
  case POET_ERROR_bad_magic:
  case POET_ERROR_bad_version:
  case POET_ERROR_bad_fingerprint:
  case POET_ERROR_bad_crc:
  case POET_ERROR_bad_table:
  case POET_ERROR_bad_plan:
  case POET_ERROR_arena_small:
  case POET_ERROR_table_small:
  case POET_ERROR_no_kernel:
    return POET_ERROR_package;
  case POET_ERROR_foreign_storage:
  case POET_ERROR_storage_version:
    return POET_ERROR_not_blank;
  case POET_ERROR_page_damaged:
    return POET_ERROR_storage_failed;
  default:
    return error;
  }
}

/* The storage is that of the application, so nobody exchanges it: after an
 * error, it need not be mounted again, which would unload the schedule. */
int learner_leave(struct learning *l, bool bus, int result) {
  if (bus && l->device->give_bus && l->device->blocks) {
    l->device->give_bus(l->device->context);
  }
  if (l->opened == OPENED) {
    if (l->p.storage_status) {
      l->arrived = 0;       /* what was still to be written is lost */
      l->must_renew = true; /* a commit that failed may be on storage */
    }
    l->p.storage_status = 0;
    if (l->p.live_step == POET_NO_STEP) { /* steps were undone */
      l->loss = learner_committed_loss(l);
    }
  }
  l->inside = 0;
  return as_known(result);
}

#endif
