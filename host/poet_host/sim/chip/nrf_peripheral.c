/* nrf_peripheral.c - tasks, events, shortcuts and interrupts of all peripherals
   ("Peripheral interface"). State: struct nrf_peripheral. The interrupt is
   requested while an enabled event is set. Before events are read, `changed` is
   called, so that the model can set the events that it computes only on demand.
   An unknown task, event or shortcut stops the machine. */
#include "nrf52840.h"

enum {
  EVENTS_FIRST = 0x100,
  EVENTS_LAST = 0x17c,
  SHORTS = 0x200,
  INTENSET = 0x304,
  INTENCLR = 0x308,
};

void nrf_stop(struct nrf_peripheral *p, const char *text) {
  machine_stop(p->chip->m, RUN_FAULT, "%s: %s", p->name, text);
}

static void raise(struct nrf_peripheral *p) {
  machine_irq(p->chip->m, p->irq, (p->events & p->enabled) != 0);
}

void nrf_event(struct nrf_peripheral *p, unsigned bit) {
  p->events |= 1u << bit;
  raise(p);
}

static void changed(struct nrf_peripheral *p) {
  if (p->changed)
    p->changed(p);
  raise(p);
}

static bool region_read(void *owner, uint32_t offset, unsigned size,
                        uint32_t *value) {
  struct nrf_peripheral *p = owner;
  if (size != 4)
    return false;
  if (offset >= EVENTS_FIRST && offset <= EVENTS_LAST) {
    unsigned bit = (offset - EVENTS_FIRST) / 4;
    changed(p);
    *value = p->events >> bit & 1;
    return p->known_events >> bit & 1;
  }
  switch (offset) {
  case SHORTS:
    *value = p->shorts;
    return p->known_shorts;
  case INTENSET:
  case INTENCLR:
    *value = p->enabled;
    return p->known_events;
  default:
    return p->registers ? register_read(p->registers, p, offset, size, value)
                        : p->read(p, offset, value);
  }
}

static bool write_event(struct nrf_peripheral *p, unsigned bit,
                        uint32_t value) {
  if (!(p->known_events >> bit & 1) || value)
    return false;
  changed(p);
  p->events &= ~(1u << bit);
  changed(p);
  return true;
}

static bool write_other(struct nrf_peripheral *p, uint32_t offset,
                        uint32_t value) {
  if (!p->registers)
    return p->write(p, offset, value);
  changed(p);
  if (!register_write(p->registers, p, offset, 4, value))
    return false;
  changed(p);
  return true;
}

static bool region_write(void *owner, uint32_t offset, unsigned size,
                         uint32_t value) {
  struct nrf_peripheral *p = owner;
  if (size != 4)
    return false;
  if (offset < EVENTS_FIRST)
    return value == 1 ? p->task && p->task(p, offset) : value == 0;
  if (offset <= EVENTS_LAST)
    return write_event(p, (offset - EVENTS_FIRST) / 4, value);
  switch (offset) {
  case SHORTS:
    p->shorts = value;
    changed(p);
    return !(value & ~p->known_shorts);
  case INTENSET:
    p->enabled |= value;
    break;
  case INTENCLR:
    p->enabled &= ~value;
    break;
  default:
    return write_other(p, offset, value);
  }
  changed(p);
  return !(p->enabled & ~p->known_events);
}

void nrf_add(struct nrf52840 *chip, struct nrf_peripheral *p) {
  p->chip = chip;
  machine_map(chip->m,
              &(struct region){p->name, p->base, 0x1000, p, .read = region_read,
                               .write = region_write});
}
