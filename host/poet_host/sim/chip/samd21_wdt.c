/* samd21_wdt.c - the watchdog (section 18). State: struct samd21_wdt. The
   window mode is not modelled. CTRL and CLEAR are synchronised with the
   watchdog's own clock; a second write meanwhile would stall the bus for
   milliseconds, so the machine stops. */
#include "samd21.h"

enum {
  BASE = 0x40001000,
  CTRL = 0x00,
  CONFIG = 0x01,
  EWCTRL = 0x02,
  INTENCLR = 0x04,
  INTENSET = 0x05,
  INTFLAG = 0x06,
  STATUS = 0x07,
  CLEAR = 0x08,
  IRQ = 2,
  CLOCK = 3, /* generic clock channel */
  APB_BIT = 4,
  ENABLE = 2,
  WARNING = 1,
  SYNCBUSY = 0x80,
  KEY = 0xa5,
  LONGEST = 11,    /* 16,384 cycles */
  PERIOD = 15,     /* PER in CONFIG */
  SYNC_CYCLES = 5, /* of the watchdog's clock */
};

static void raise(void *owner) {
  const struct samd21_wdt *w = owner;
  machine_irq(w->chip->m, IRQ, (w->flags & w->enabled_interrupts) != 0);
}

/* Return the ticks of `cycles` of the watchdog's clock. */
static uint64_t ticks_of(const struct samd21_wdt *w, uint64_t cycles) {
  return cycles * SAMD21_HZ / samd21_clock_hz(w->chip, CLOCK);
}

static void warned(void *owner, uint64_t at) {
  (void)at;
  struct samd21_wdt *w = owner;
  w->flags |= WARNING;
  raise(w);
}

static void bites(void *owner, uint64_t at) {
  (void)at;
  const struct samd21_wdt *w = owner;
  machine_request_reset(w->chip->m, RESET_WATCHDOG, "the watchdog bites");
}

static void restart(struct samd21_wdt *w) {
  struct machine *m = w->chip->m;
  event_cancel(&w->warning);
  event_cancel(&w->bite);
  if (!(w->control & ENABLE))
    return;
  if (samd21_clock_hz(w->chip, CLOCK) == 0) {
    machine_stop(m, RUN_FAULT, "WDT: its generic clock (GCLK_WDT) is off");
    return;
  }
  const uint8_t period = w->config & PERIOD;
  event_at(m, &w->bite, m->now + ticks_of(w, 8u << period));
  if (w->warning_offset < period)
    event_at(m, &w->warning, m->now + ticks_of(w, 8u << w->warning_offset));
}

static bool synchronise(struct samd21_wdt *w) {
  struct machine *m = w->chip->m;
  if (m->now < w->busy_until) {
    machine_stop(m, RUN_FAULT,
                 "WDT: a write while STATUS.SYNCBUSY is set stalls the bus");
    return false;
  }
  if (samd21_clock_hz(w->chip, CLOCK))
    w->busy_until = m->now + ticks_of(w, SYNC_CYCLES);
  return true;
}

static bool set_control(void *owner, uint32_t value) {
  struct samd21_wdt *w = owner;
  if (value & ~(uint32_t)ENABLE)
    return false;
  if (synchronise(w)) {
    w->control = (uint8_t)value;
    restart(w);
  }
  return true;
}

static bool clear(void *owner, uint32_t value) {
  struct samd21_wdt *w = owner;
  if (value != KEY)
    machine_request_reset(w->chip->m, RESET_WATCHDOG,
                          "a wrong key in WDT.CLEAR");
  else if (synchronise(w))
    restart(w);
  return true;
}

static void protected(void *owner) {
  const struct samd21_wdt *w = owner;
  if (w->control & ENABLE)
    machine_stop(w->chip->m, RUN_FAULT,
                 "WDT: CONFIG and EWCTRL are enable-protected");
}

static uint32_t status(void *owner) {
  const struct samd21_wdt *w = owner;
  return w->chip->m->now < w->busy_until ? SYNCBUSY : 0;
}

#define OF_WDT(member) FIELD(struct samd21_wdt, member)
static const struct reg registers[] = {
    {CTRL, 1, BY_FUNCTION, OF_WDT(control), .set = set_control},
    {CONFIG, 1, PLAIN, OF_WDT(config), .most = LONGEST, .after = protected},
    {EWCTRL, 1, PLAIN, OF_WDT(warning_offset), .most = LONGEST,
     .after = protected},
    {INTENCLR, 1, CLEAR_ONES, OF_WDT(enabled_interrupts), .after = raise},
    {INTENSET, 1, SET_ONES, OF_WDT(enabled_interrupts), .after = raise},
    {INTFLAG, 1, CLEAR_ONES, OF_WDT(flags), .after = raise},
    {STATUS, 1, .get = status},
    {CLEAR, 1, WRITE_ONLY, .set = clear},
    {0}};

static bool clocked(void *owner) {
  const struct samd21_wdt *w = owner;
  return samd21_bus_clock(w->chip, 0, APB_BIT, "WDT");
}

void samd21_wdt_create(struct samd21 *chip) {
  struct samd21_wdt *w = &chip->wdt;
  w->chip = chip;
  w->config = LONGEST << 4 | LONGEST; /* its window mode is not modelled */
  w->warning_offset = LONGEST;
  event_add(chip->m, &w->warning, warned, w);
  event_add(chip->m, &w->bite, bites, w);
  w->warning.watchdog = w->bite.watchdog = true;
  machine_map(chip->m,
              &(struct region){"WDT", BASE, 0x400, w, .registers = registers,
                               .ready = clocked});
}
