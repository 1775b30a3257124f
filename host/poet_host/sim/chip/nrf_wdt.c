/* nrf_wdt.c - the watchdog (chapter WDT), with reload register 0 alone. State:
   struct nrf_wdt. Once started, it runs until a reset, and its settings cannot
   be changed. If its interrupt is enabled, the reset comes two periods of
   32,768 Hz after the event. */
#include "nrf52840.h"

enum {
  START = 0x000,
  TIMEOUT = 0, /* event, by bit */
  RUNSTATUS = 0x400,
  CRV = 0x504,
  RREN = 0x508,
  CONFIG = 0x50c,
  RR0 = 0x600,
  KEY = 0x6e524635,
  RUN_IN_SLEEP = 1,
  CLOCK_HZ = 32768,
  TICKS = NRF52840_HZ / CLOCK_HZ, /* of a period, rounded */
};

static void restart(struct nrf_wdt *w) {
  struct machine *m = w->p.chip->m;
  event_at(m, &w->timeout, m->now + ((uint64_t)w->reload + 1) * TICKS);
}

static void timed_out(void *owner, uint64_t at) {
  struct nrf_wdt *w = owner;
  nrf_event(&w->p, TIMEOUT);
  event_at(w->p.chip->m, &w->bite, at + (w->p.enabled ? 2 * TICKS : 0));
}

static void bites(void *owner, uint64_t at) {
  (void)at;
  const struct nrf_wdt *w = owner;
  machine_request_reset(w->p.chip->m, RESET_WATCHDOG, "the watchdog bites");
}

static bool task(struct nrf_peripheral *p, uint32_t offset) {
  struct nrf_wdt *w = (struct nrf_wdt *)p;
  if (offset != START)
    return false;
  if (!(w->config & RUN_IN_SLEEP) || w->enabled_reloads != 1)
    nrf_stop(p, "only RR[0], and a watchdog that runs in sleep, are modelled");
  if (!w->running) {
    w->running = true;
    restart(w);
  }
  return true;
}

static bool reload(void *owner, uint32_t value) {
  struct nrf_wdt *w = owner;
  if (value == KEY && w->running && w->bite.at == NEVER)
    restart(w);
  return true;
}

static bool write_locked(struct nrf_wdt *w, uint32_t *field, uint32_t value) {
  if (!w->running)
    *field = value;
  return true;
}

static bool set_reload(void *owner, uint32_t value) {
  struct nrf_wdt *w = owner;
  return write_locked(w, &w->reload, value);
}

static bool set_enabled(void *owner, uint32_t value) {
  struct nrf_wdt *w = owner;
  return write_locked(w, &w->enabled_reloads, value);
}

static bool set_config(void *owner, uint32_t value) {
  struct nrf_wdt *w = owner;
  return write_locked(w, &w->config, value);
}

static uint32_t run_status(void *owner) {
  const struct nrf_wdt *w = owner;
  return w->running;
}

#define OF_WDT(member) FIELD(struct nrf_wdt, member)
static const struct reg registers[] = {
    {RUNSTATUS, 4, .get = run_status},
    {CRV, 4, BY_FUNCTION, OF_WDT(reload), .set = set_reload},
    {RREN, 4, BY_FUNCTION, OF_WDT(enabled_reloads), .set = set_enabled},
    {CONFIG, 4, BY_FUNCTION, OF_WDT(config), .set = set_config},
    {RR0, 4, WRITE_ONLY, .set = reload},
    {0}};

void nrf_wdt_create(struct nrf52840 *chip) {
  struct nrf_wdt *w = &chip->wdt;
  w->p = (struct nrf_peripheral){.name = "WDT",
                                 .base = 0x40010000,
                                 .irq = 16,
                                 .known_events = 1 << TIMEOUT,
                                 .task = task,
                                 .registers = registers};
  w->reload = UINT32_MAX;
  w->enabled_reloads = w->config = 1;
  event_add(chip->m, &w->timeout, timed_out, w);
  event_add(chip->m, &w->bite, bites, w);
  w->timeout.watchdog = w->bite.watchdog = true;
  nrf_add(chip, &w->p);
}
