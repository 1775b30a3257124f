/* bus.c - events, registers of peripherals, DMA, and stopping the machine.

   State, in struct machine: `events`, each with the tick at which it fires, and
   `first` of them, which is found again when it has changed;
   `regions`, the registers of peripherals; `guard`, RAM that must not be
   accessed during a DMA transfer. `deadline` is the tick at which core.c must
   look at events again. `deadline` may be too early but never too late: every
   change that could make an event due earlier lowers `deadline`. */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* -- events -- */

void event_add(struct machine *m, struct event *event,
               void (*fire)(void *owner, uint64_t at), void *owner) {
  *event = (struct event){NEVER, fire, owner, m->event_count, false};
  m->events[m->event_count++] = event;
  if (!m->first) {
    m->first = event;
    m->first_at = NEVER;
  }
}

void event_at(struct machine *m, struct event *event, uint64_t at) {
  event->at = at;
  if (at < m->first_at ||
      (at == m->first_at && event->index < m->first->index)) {
    m->first = event;
    m->first_at = at;
  }
  if (at < m->deadline)
    m->deadline = at;
}

void event_cancel(struct event *event) {
  event->at = NEVER;
}

static struct event *first_event(struct machine *m) {
  if (m->first->at == m->first_at)
    return m->first;
  struct event *first = m->events[0];
  for (unsigned i = 1; i < m->event_count; i++)
    if (m->events[i]->at < first->at)
      first = m->events[i];
  m->first = first;
  m->first_at = first->at;
  return first;
}

const struct event *next_event(struct machine *m) {
  return first_event(m);
}

uint64_t run_events(struct machine *m) {
  for (;;) {
    struct event *event = first_event(m);
    uint64_t at = event->at;
    if (m->stopped || at > m->now)
      return at;
    event->at = NEVER;
    event->fire(event->owner, at);
  }
}

/* -- peripherals' registers -- */

void machine_map(struct machine *m, const struct region *region) {
  m->regions[m->region_count++] = *region;
}

static const struct region *find_region(struct machine *m, uint32_t address) {
  const struct region *last = m->last_region;
  if (last && address - last->base < last->size_bytes)
    return last;
  for (unsigned i = 0; i < m->region_count; i++)
    if (address - m->regions[i].base < m->regions[i].size_bytes)
      return m->last_region = &m->regions[i];
  return NULL;
}

void uncovered(struct machine *m, const char *what, uint32_t address,
               unsigned size) {
  const struct region *region = find_region(m, address);
  if (region) {
    machine_stop(m, RUN_FAULT,
                 "%s of %u bytes at 0x%08x: the model of %s does not cover "
                 "register offset 0x%x in that width",
                 what, size, address, region->name, address - region->base);
    return;
  }
  const struct region *named = m->unmodelled;
  while (named && named->name && address - named->base >= named->size_bytes)
    named++;
  if (named && named->name) {
    machine_stop(m, RUN_FAULT,
                 "%s of %u bytes at 0x%08x: the chip has %s there, but the "
                 "simulator has no model of it",
                 what, size, address, named->name);
    return;
  }
  machine_stop(m, RUN_FAULT,
               "%s of %u bytes at 0x%08x: the chip has nothing there", what,
               size, address);
}

/* Run the due events before the access. Events may be due, because the clock
   is already at the end of the block of code that runs (core.c). */
static void begin_access(struct machine *m, uint32_t address) {
  m->accessing = true;
  m->accessed = address;
  flash_correct(m);
  if (m->now >= m->deadline)
    run_events(m);
}

static bool region_read(const struct region *r, uint32_t offset, unsigned size,
                        uint32_t *value) {
  if (!r->registers)
    return r->read(r->owner, offset, size, value);
  return (r->ready && !r->ready(r->owner)) ||
         register_read(r->registers, r->owner, offset, size, value);
}

static bool region_write(const struct region *r, uint32_t offset, unsigned size,
                         uint32_t value) {
  if (!r->registers)
    return r->write(r->owner, offset, size, value);
  return (r->ready && !r->ready(r->owner)) ||
         register_write(r->registers, r->owner, offset, size, value);
}

bool machine_read_register(struct machine *m, uint32_t address, unsigned size,
                           uint32_t *value) {
  const struct region *r = find_region(m, address);
  const bool covered = r && region_read(r, address - r->base, size, value);
  const bool refused = m->stopped;
  m->stopped = false;
  return covered && !refused;
}

bool machine_write_register(struct machine *m, uint32_t address, unsigned size,
                            uint32_t value) {
  const struct region *r = find_region(m, address);
  const bool covered = r && region_write(r, address - r->base, size, value);
  const bool refused = m->stopped;
  m->stopped = false;
  return covered && !refused;
}

static uint64_t window_read(uc_engine *uc, uint64_t offset, unsigned size,
                            void *user) {
  (void)uc;
  struct window *window = user;
  uint32_t address = window->base + (uint32_t)offset, value = 0;
  begin_access(window->m, address);
  const struct region *r = find_region(window->m, address);
  if (!r || !region_read(r, address - r->base, size, &value))
    uncovered(window->m, "read", address, size);
  window->m->accessing = false;
  return value;
}

static void window_write(uc_engine *uc, uint64_t offset, unsigned size,
                         uint64_t value, void *user) {
  (void)uc;
  struct window *window = user;
  uint32_t address = window->base + (uint32_t)offset;
  begin_access(window->m, address);
  const struct region *r = find_region(window->m, address);
  if (!r || !region_write(r, address - r->base, size, (uint32_t)value))
    uncovered(window->m, "write", address, size);
  window->m->accessing = false;
}

void machine_window(struct machine *m, uint32_t base, uint32_t size_bytes) {
  struct window *window = &m->windows[m->window_count++];
  *window = (struct window){m, base};
  uc_mmio_map(m->uc, base, size_bytes, window_read, window, window_write,
              window);
}

/* -- RAM that must not be accessed for a while -- */

void machine_guard(struct machine *m, uint32_t from, uint32_t to,
                   const char *why) {
  m->guard = (struct guard){from, to, why};
  if (watch_pending(m))
    m->deadline = 0;
}

static bool guarded(const struct machine *m, uint32_t address, uint32_t size) {
  return address < m->guard.to && address + size > m->guard.from;
}

static bool allowed(struct window *window, uint32_t address, unsigned size) {
  struct machine *m = window->m;
  if (!guarded(m, address, size))
    return true;
  m->accessing = true;
  m->accessed = address;
  machine_stop(m, RUN_FAULT, "access to 0x%08x: %s", address, m->guard.why);
  m->accessing = false;
  return false;
}

static uint64_t watched_read(uc_engine *uc, uint64_t offset, unsigned size,
                             void *user) {
  (void)uc;
  struct window *window = user;
  uint32_t address = window->base + (uint32_t)offset;
  uint64_t value = 0;
  if (allowed(window, address, size))
    memcpy(&value, window->m->ram + (address - window->m->ram_base), size);
  return value;
}

static void watched_write(uc_engine *uc, uint64_t offset, unsigned size,
                          uint64_t value, void *user) {
  (void)uc;
  struct window *window = user;
  uint32_t address = window->base + (uint32_t)offset;
  if (allowed(window, address, size))
    memcpy(window->m->ram + (address - window->m->ram_base), &value, size);
}

/* Return the first piece of guarded RAM whose accesses are not watched yet, or
   RAM_PIECES if there is none. */
static uint32_t unwatched(const struct machine *m) {
  if (m->guard.to <= m->guard.from)
    return RAM_PIECES;
  uint32_t piece = (m->guard.from - m->ram_base) / RAM_PIECE_BYTES;
  uint32_t end = (m->guard.to - 1 - m->ram_base) / RAM_PIECE_BYTES;
  for (; piece <= end; piece++)
    if (!m->watched[piece].m)
      return piece;
  return RAM_PIECES;
}

bool watch_pending(const struct machine *m) {
  return unwatched(m) != RAM_PIECES;
}

/* Watch the accesses to the guarded pieces of RAM: each access then calls a
   function. The pieces stay watched after the guard has ended, because a change
   of memory rights takes far longer than these calls. So the firmware should
   keep little data in these pieces. */
void watch_guarded(struct machine *m) {
  for (uint32_t piece; (piece = unwatched(m)) != RAM_PIECES;) {
    struct window *window = &m->watched[piece];
    *window = (struct window){m, m->ram_base + piece * RAM_PIECE_BYTES};
    uc_mem_unmap(m->uc, window->base, RAM_PIECE_BYTES);
    uc_mmio_map(m->uc, window->base, RAM_PIECE_BYTES, watched_read, window,
                watched_write, window);
  }
}

/* Let the core execute code in this piece of RAM. The core then checks each
   write to the piece, because a write may change the code. */
void allow_code(struct machine *m, uint32_t address) {
  uc_mem_protect(m->uc, address & ~(RAM_PIECE_BYTES - 1u), RAM_PIECE_BYTES,
                 UC_PROT_ALL);
}

uint8_t *machine_dma(struct machine *m, const char *who, uint32_t address,
                     uint32_t size_bytes) {
  uint32_t offset = address - m->ram_base;
  if (offset > m->ram_bytes || size_bytes > m->ram_bytes - offset) {
    machine_stop(m, RUN_FAULT, "%s reaches 0x%08x..0x%08x, which is not in RAM",
                 who, address, address + size_bytes);
    return NULL;
  }
  if (guarded(m, address, size_bytes)) {
    machine_stop(m, RUN_FAULT, "%s reaches 0x%08x: %s", who, address,
                 m->guard.why);
    return NULL;
  }
  return m->ram + offset;
}

const uint8_t *machine_dma_source(struct machine *m, const char *who,
                                  uint32_t address, uint32_t size_bytes) {
  if (address <= m->flash_bytes && size_bytes <= m->flash_bytes - address)
    return m->flash + address;
  return machine_dma(m, who, address, size_bytes);
}

/* -- stopping -- */

void machine_stop(struct machine *m, enum run_result result, const char *format,
                  ...) {
  if (m->stopped)
    return;
  m->stopped = true;
  m->result = result;
  va_list arguments;
  va_start(arguments, format);
  int used = vsnprintf(m->message, sizeof m->message, format, arguments);
  va_end(arguments);
  if (used >= 0 && used < (int)sizeof m->message)
    snprintf(m->message + used, sizeof m->message - (size_t)used,
             " (program counter 0x%08x, in the block at 0x%08x)",
             m->accessing ? locate_access(m, m->accessed)
                          : core_read(m, UC_ARM_REG_PC),
             m->block_address);
  if (m->in_core)
    uc_emu_stop(m->uc);
}
