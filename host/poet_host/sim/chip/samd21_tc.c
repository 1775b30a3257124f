/* samd21_tc.c - TC (section 30): counting up in 16 or 32 bits, compare and
   overflow interrupts, match frequency, one shot.

   State: struct samd21_tc. The counter is not stepped: its value is computed
   from `started_at` while it runs, and is `stopped_count` otherwise. A compare
   or overflow is scheduled as an event only if an interrupt or a one-shot needs
   it. All others are found by catch_up, which looks at the time since
   `caught_up_at`. COUNT reads the value of the last read request, as on the
   chip. */
#include "samd21.h"

#include <stdio.h>

enum {
  BASE = 0x42002c00, /* TC3 */
  IRQ = 18,
  CTRLA = 0x00,
  READREQ = 0x02,
  CTRLBCLR = 0x04,
  CTRLBSET = 0x05,
  INTENCLR = 0x0c,
  INTENSET = 0x0d,
  INTFLAG = 0x0e,
  STATUS = 0x0f,
  COUNT = 0x10,
  CC0 = 0x18,
  SWRST = 1,
  ENABLE = 2,
  MODE_32 = 2,
  CTRLB_ONESHOT = 4,
  COMMAND_RETRIGGER = 1,
  COMMAND_STOP = 2,
  FLAG_OVF = 1,
  FLAG_MC0 = 1 << 4,
  RREQ = 1 << 15,
  RCONT = 1 << 14,
  SYNC_TICKS = 48,
};

static bool wide(const struct samd21_tc *t) {
  return (t->control_a >> 2 & 3) == MODE_32;
}

static uint64_t period(const struct samd21_tc *t) {
  if ((t->control_a >> 5 & 3) == 1) /* match frequency: CC0 is the top */
    return (uint64_t)t->compare[0] + 1;
  return wide(t) ? (uint64_t)1 << 32 : 1 << 16;
}

static uint64_t ticks_per_count(const struct samd21_tc *t) {
  static const uint16_t prescaler[8] = {1, 2, 4, 8, 16, 64, 256, 1024};
  uint32_t hz = samd21_clock_hz(t->chip, t->index == 3 ? 0x1b : 0x1c);
  return hz ? (uint64_t)prescaler[t->control_a >> 8 & 7] * SAMD21_HZ / hz : 0;
}

static uint32_t count(const struct samd21_tc *t) {
  if (!t->running)
    return t->stopped_count;
  uint64_t counts = (t->chip->m->now - t->started_at) / ticks_per_count(t);
  return (uint32_t)(counts % period(t));
}

static void raise(struct samd21_tc *t) {
  machine_irq(t->chip->m, IRQ + t->index - 3,
              (t->flags & t->enabled_interrupts) != 0);
}

static uint8_t flag_of(unsigned k) {
  return k == 0 ? FLAG_OVF : (uint8_t)(FLAG_MC0 << (k - 1));
}

/* Return the first tick later than `after` at which the counter overflows (k =
   0) or reaches compare value k - 1. */
static uint64_t next_due(const struct samd21_tc *t, unsigned k,
                         uint64_t after) {
  uint64_t each = ticks_per_count(t), round = period(t) * each;
  uint64_t at =
      t->started_at + (k ? (uint64_t)t->compare[k - 1] * each : round);
  if (k && t->compare[k - 1] >= period(t))
    return NEVER;
  if (at <= after)
    at += ((after - at) / round + 1) * round;
  return at;
}

/* Schedule the events that an interrupt or the end of a one-shot needs. */
static void schedule(struct samd21_tc *t) {
  for (unsigned k = 0; k < 3; k++) {
    event_cancel(&t->due[k]);
    bool wanted = (t->enabled_interrupts & flag_of(k)) ||
                  (k == 0 && (t->control_b & CTRLB_ONESHOT));
    if (t->running && wanted)
      event_at(t->chip->m, &t->due[k], next_due(t, k, t->chip->m->now));
  }
}

/* Set the flags of compares and overflows that were not scheduled as events. */
static void catch_up(struct samd21_tc *t) {
  uint64_t now = t->chip->m->now;
  for (unsigned k = 0; k < 3; k++)
    if (t->running && t->due[k].at == NEVER &&
        next_due(t, k, t->caught_up_at) <= now)
      t->flags |= flag_of(k);
  t->caught_up_at = now;
}

static void due(struct samd21_tc *t, unsigned k, uint64_t at) {
  t->flags |= flag_of(k);
  if (k == 0 && (t->control_b & CTRLB_ONESHOT)) {
    t->running = false;
    t->stopped_count = 0;
    schedule(t);
  } else {
    event_at(t->chip->m, &t->due[k], next_due(t, k, at));
  }
  raise(t);
}

static void overflow_due(void *owner, uint64_t at) {
  due(owner, 0, at);
}

static void compare0_due(void *owner, uint64_t at) {
  due(owner, 1, at);
}

static void compare1_due(void *owner, uint64_t at) {
  due(owner, 2, at);
}

static void start_at(struct samd21_tc *t, uint32_t from) {
  uint64_t each = ticks_per_count(t);
  if (each == 0) {
    machine_stop(t->chip->m, RUN_FAULT, "%s: its generic clock is off",
                 t->name);
    return;
  }
  t->running = true;
  t->started_at = t->chip->m->now - from * each;
  t->caught_up_at = t->chip->m->now;
  schedule(t);
}

static void stop(struct samd21_tc *t) {
  t->stopped_count = count(t);
  t->running = false;
  schedule(t);
}

static void write_control_a(struct samd21_tc *t, uint32_t value) {
  uint32_t before = t->control_a;
  if (value & SWRST) {
    t->control_a = t->read_request = 0;
    t->control_b = t->enabled_interrupts = t->flags = 0;
    t->compare[0] = t->compare[1] = t->stopped_count = 0;
    t->running = false;
    schedule(t);
    raise(t);
    return;
  }
  if ((before & ENABLE) && ((value ^ before) & ~(uint32_t)ENABLE)) {
    machine_stop(t->chip->m, RUN_FAULT,
                 "%s: CTRLA is enable-protected: clear ENABLE first", t->name);
    return;
  }
  t->control_a = (uint16_t)value;
  if (wide(t) && t->index != 4) {
    machine_stop(t->chip->m, RUN_FAULT,
                 "%s: only TC4 counts 32 bits (with TC5) here", t->name);
    return;
  }
  if ((value & ENABLE) && !(before & ENABLE))
    start_at(t, t->stopped_count);
  if (!(value & ENABLE) && (before & ENABLE))
    stop(t);
}

static void write_control_b(struct samd21_tc *t, uint8_t value) {
  t->control_b |= value & 0x3f;
  if (value >> 6 == COMMAND_RETRIGGER && (t->control_a & ENABLE))
    start_at(t, 0);
  else if (value >> 6 == COMMAND_STOP && t->running)
    stop(t);
  else
    schedule(t);
}

static bool tc_read(void *owner, uint32_t offset, unsigned size,
                    uint32_t *value) {
  struct samd21_tc *t = owner;
  unsigned width = wide(t) ? 4 : 2;
  if (!samd21_bus_clock(t->chip, 2, APBC_TC3 + t->index - 3, t->name))
    return true;
  switch (offset) {
  case CTRLA:
    *value = t->control_a;
    return size == 2;
  case CTRLBCLR:
  case CTRLBSET:
    *value = t->control_b;
    return size == 1;
  case INTENCLR:
  case INTENSET:
    *value = t->enabled_interrupts;
    return size == 1;
  case INTFLAG:
    catch_up(t);
    *value = t->flags;
    return size == 1;
  case STATUS:
    *value =
        (t->running ? 0u : 8u) | (t->chip->m->now < t->busy_until ? 0x80u : 0u);
    return size == 1;
  case COUNT: /* the value that the last read request fetched (30.6.6) */
    if (t->read_request & RCONT)
      t->read_count = count(t);
    *value = t->read_count;
    return size == width;
  default:
    if (offset != CC0 && offset != CC0 + width)
      return false;
    *value = t->compare[offset != CC0];
    return size == width;
  }
}

static bool tc_write(void *owner, uint32_t offset, unsigned size,
                     uint32_t value) {
  struct samd21_tc *t = owner;
  unsigned width = wide(t) ? 4 : 2;
  if (!samd21_bus_clock(t->chip, 2, APBC_TC3 + t->index - 3, t->name))
    return true;
  t->busy_until = t->chip->m->now + SYNC_TICKS;
  switch (offset) {
  case CTRLA:
    write_control_a(t, value);
    return size == 2;
  case READREQ:
    t->read_request = (uint16_t)value;
    if (value & RREQ)
      t->read_count = count(t);
    return size == 2 && (value & 31) == COUNT;
  case CTRLBCLR:
    t->control_b &= (uint8_t)~value;
    schedule(t);
    return size == 1;
  case CTRLBSET:
    write_control_b(t, (uint8_t)value);
    return size == 1 && !(value & 1); /* counting down is not modelled */
  case INTENCLR:
  case INTENSET:
    catch_up(t);
    t->enabled_interrupts =
        (uint8_t)(offset == INTENSET ? t->enabled_interrupts | value
                                     : t->enabled_interrupts & ~value);
    schedule(t);
    raise(t);
    return size == 1;
  case INTFLAG:
    catch_up(t);
    t->flags &= (uint8_t)~value;
    raise(t);
    return size == 1;
  case COUNT:
    t->stopped_count = value;
    if (t->running)
      start_at(t, value);
    return size == width;
  default:
    if (offset != CC0 && offset != CC0 + width)
      return false;
    t->compare[offset != CC0] = value;
    schedule(t);
    return size == width;
  }
}

void samd21_tc_create(struct samd21 *chip, unsigned position) {
  struct samd21_tc *t = &chip->tcs[position];
  t->chip = chip;
  t->index = 3 + position;
  snprintf(t->name, sizeof t->name, "TC%u", t->index);
  event_add(chip->m, &t->due[0], overflow_due, t);
  event_add(chip->m, &t->due[1], compare0_due, t);
  event_add(chip->m, &t->due[2], compare1_due, t);
  machine_map(chip->m, &(struct region){t->name, BASE + 0x400 * position, 0x400,
                                        t, .read = tc_read, .write = tc_write});
}
