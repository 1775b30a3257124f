/* Events, registers of peripherals, DMA, and how the machine stops. */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>

/* -- events -- */

void event_add(struct machine *m, struct event *event,
               void (*fire)(void *owner, uint64_t at), void *owner) {
  *event = (struct event){.at = NEVER, .fire = fire, .owner = owner};
  m->events[m->event_count++] = event;
}

void event_at(struct machine *m, struct event *event, uint64_t at) {
  event->at = at;
  if (at < m->deadline)
    m->deadline = at;
}

void event_cancel(struct event *event) {
  event->at = NEVER;
}

struct event *next_event(struct machine *m) {
  struct event *first = m->events[0];
  for (unsigned i = 1; i < m->event_count; i++)
    if (m->events[i]->at < first->at)
      first = m->events[i];
  return first;
}

void run_events(struct machine *m) {
  struct event *event;
  while (!m->stopped && (event = next_event(m))->at <= m->now) {
    uint64_t at = event->at;
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
  for (unsigned i = 0; i < m->unmodelled_count; i++)
    if (address - m->unmodelled[i].base < m->unmodelled[i].size_bytes) {
      machine_stop(m, RUN_FAULT,
                   "%s of %u bytes at 0x%08x: the chip has %s there, but the "
                   "simulator has no model of it",
                   what, size, address, m->unmodelled[i].name);
      return;
    }
  machine_stop(m, RUN_FAULT,
               "%s of %u bytes at 0x%08x: the chip has nothing there", what,
               size, address);
}

/* What is due by now happens before the access: time has passed to the end of
   the block already. */
static void begin_access(struct machine *m, uint32_t address) {
  m->accessing = true;
  m->accessed = address;
  if (m->now >= m->deadline)
    run_events(m);
}

static uint64_t window_read(uc_engine *uc, uint64_t offset, unsigned size,
                            void *user) {
  (void)uc;
  struct window *window = user;
  uint32_t address = window->base + (uint32_t)offset, value = 0;
  begin_access(window->m, address);
  const struct region *r = find_region(window->m, address);
  if (!r || !r->read(r->owner, address - r->base, size, &value))
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
  if (!r || !r->write(r->owner, address - r->base, size, (uint32_t)value))
    uncovered(window->m, "write", address, size);
  window->m->accessing = false;
}

void machine_window(struct machine *m, uint32_t base, uint32_t size_bytes) {
  struct window *window = &m->windows[m->window_count++];
  *window = (struct window){m, base};
  uc_mmio_map(m->uc, base, size_bytes, window_read, window, window_write,
              window);
}

/* -- RAM that must be left alone for a while -- */

void machine_guard(struct machine *m, uint32_t from, uint32_t to,
                   const char *why) {
  m->guard = (struct guard){from, to, why};
  m->deadline = 0;
}

bool guard_pending(const struct machine *m) {
  return m->guard.from != m->guard_in_force.from ||
         m->guard.to != m->guard_in_force.to;
}

/* Only between two runs of the core. */
void guard_apply(struct machine *m) {
  const struct guard *was = &m->guard_in_force, *is = &m->guard;
  if (was->to > was->from)
    uc_mem_protect(m->uc, was->from, was->to - was->from, UC_PROT_ALL);
  if (is->to > is->from)
    uc_mem_protect(m->uc, is->from, is->to - is->from, UC_PROT_NONE);
  m->guard_in_force = m->guard;
}

uint8_t *machine_dma(struct machine *m, const char *who, uint32_t address,
                     uint32_t size_bytes) {
  uint32_t offset = address - m->ram_base;
  if (offset > m->ram_bytes || size_bytes > m->ram_bytes - offset) {
    machine_stop(m, RUN_FAULT, "%s reaches 0x%08x..0x%08x, which is not in RAM",
                 who, address, address + size_bytes);
    return NULL;
  }
  if (address < m->guard.to && address + size_bytes > m->guard.from) {
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
