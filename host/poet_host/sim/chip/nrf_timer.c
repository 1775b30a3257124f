/* nrf_timer.c - TIMER (chapter TIMER): timer mode, captures, compares,
   shortcuts.

   State: struct nrf_timer. The counter is not stepped: its value is computed
   from `started_at` while it runs, and is `stopped_count` otherwise. A compare
   is scheduled as an event only if an interrupt or a shortcut needs it. All
   others are found by catch_up, which looks at the time since `caught_up_at`.
 */
#include "nrf52840.h"

enum {
  START = 0x000,
  STOP = 0x004,
  CLEAR = 0x00c,
  CAPTURE = 0x040,
  COMPARE = 16, /* first event's bit */
  MODE = 0x504,
  BITMODE = 0x508,
  PRESCALER = 0x510,
  CC = 0x540,
  TICKS_OF_16MHZ = 4,
};

static uint64_t period(const struct nrf_timer *t) {
  static const uint8_t bits[4] = {16, 8, 24, 32};
  return 1ull << bits[t->bit_mode & 3];
}

static uint64_t each(const struct nrf_timer *t) {
  return (uint64_t)TICKS_OF_16MHZ << t->prescaler;
}

static uint32_t count(const struct nrf_timer *t) {
  if (!t->running)
    return t->stopped_count;
  return (uint32_t)((t->p.chip->m->now - t->started_at) / each(t) % period(t));
}

static uint64_t next_due(const struct nrf_timer *t, unsigned k,
                         uint64_t after) {
  uint64_t round = period(t) * each(t);
  uint64_t at = t->started_at + (t->compare[k] % period(t)) * each(t);
  if (at <= after)
    at += ((after - at) / round + 1) * round;
  return at;
}

/* Schedule the compares that an interrupt or a shortcut needs. */
static void schedule(struct nrf_timer *t) {
  for (unsigned k = 0; k < NRF_COMPARES; k++) {
    bool wanted =
        (t->p.enabled >> (COMPARE + k) & 1) || (t->p.shorts & (0x101u << k));
    event_cancel(&t->due[k]);
    if (t->running && wanted)
      event_at(t->p.chip->m, &t->due[k], next_due(t, k, t->caught_up_at));
  }
}

static void catch_up(struct nrf_timer *t) {
  uint64_t now = t->p.chip->m->now;
  for (unsigned k = 0; k < NRF_COMPARES; k++)
    if (t->running && t->due[k].at == NEVER &&
        next_due(t, k, t->caught_up_at) <= now)
      t->p.events |= 1u << (COMPARE + k);
  t->caught_up_at = now;
}

static void changed(struct nrf_peripheral *p) {
  struct nrf_timer *t = (struct nrf_timer *)p;
  catch_up(t);
  schedule(t);
}

static void clear_at(struct nrf_timer *t, uint64_t at) {
  t->stopped_count = 0;
  t->started_at = at;
  t->caught_up_at = at;
  schedule(t);
}

static void stop(struct nrf_timer *t) {
  t->stopped_count = count(t);
  t->running = false;
  schedule(t);
}

static void due(void *owner, uint64_t at) {
  const struct nrf_compare *compare = owner;
  struct nrf_timer *t = compare->timer;
  unsigned k = compare->index;
  nrf_event(&t->p, COMPARE + k);
  t->caught_up_at = at;
  if (t->p.shorts >> k & 1)
    clear_at(t, at);
  if (t->p.shorts >> (8 + k) & 1)
    stop(t);
  else
    event_at(t->p.chip->m, &t->due[k], next_due(t, k, at));
}

static bool task(struct nrf_peripheral *p, uint32_t offset) {
  struct nrf_timer *t = (struct nrf_timer *)p;
  uint64_t now = p->chip->m->now;
  catch_up(t);
  switch (offset) {
  case START:
    if (!t->running) {
      t->running = true;
      t->started_at = now - t->stopped_count * each(t);
      t->caught_up_at = now;
      schedule(t);
    }
    return true;
  case STOP:
    if (t->running)
      stop(t);
    return true;
  case CLEAR:
    clear_at(t, now);
    return true;
  default:
    if (offset < CAPTURE || offset >= CAPTURE + 4 * NRF_COMPARES || offset % 4)
      return false;
    t->compare[(offset - CAPTURE) / 4] = count(t);
    schedule(t);
    return true;
  }
}

static bool check_stopped(void *owner, uint32_t value) {
  struct nrf_timer *t = owner;
  (void)value;
  if (t->running)
    nrf_stop(&t->p, "BITMODE or PRESCALER changed while it runs");
  return true;
}

#define OF_TIMER(member) FIELD(struct nrf_timer, member)
static const struct reg registers[] = {
    {MODE, 4, .on_write = ZERO_ONLY},
    {BITMODE, 4, PLAIN, OF_TIMER(bit_mode), .set = check_stopped},
    {PRESCALER, 4, PLAIN, OF_TIMER(prescaler), .most = 9, .set = check_stopped},
    {CC, 4, PLAIN, OF_TIMER(compare[0]), .count = NRF_COMPARES},
    {0}};

void nrf_timer_create(struct nrf52840 *chip, unsigned position) {
  static const struct nrf_peripheral instances[NRF_TIMERS] = {
      {.name = "TIMER0", .base = 0x40008000, .irq = 8},
      {.name = "TIMER1", .base = 0x40009000, .irq = 9},
      {.name = "TIMER2", .base = 0x4000a000, .irq = 10}};
  struct nrf_timer *t = &chip->timers[position];
  t->p = instances[position];
  t->p.known_events = 0x0fu << COMPARE; /* TIMER0 to 2 have four */
  t->p.known_shorts = 0x0f0f;
  t->p.task = task;
  t->p.registers = registers;
  t->p.changed = changed;
  t->prescaler = 4; /* reset value */
  for (unsigned k = 0; k < NRF_COMPARES; k++) {
    t->owners[k] = (struct nrf_compare){t, k};
    event_add(chip->m, &t->due[k], due, &t->owners[k]);
  }
  nrf_add(chip, &t->p);
}
