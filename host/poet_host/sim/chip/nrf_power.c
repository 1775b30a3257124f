/* nrf_power.c - CLOCK and POWER (chapters of these names), which share their
   registers and their interrupt: the crystal, and the supply of USB. State:
   struct nrf_power. Some time after their start, the crystal and the USB
   regulator are ready, and set an event. */
#include "nrf52840.h"

enum {
  HFCLKSTART = 0x000,
  HFCLKSTOP = 0x004,
  HFCLKSTARTED = 0, /* events, by bit */
  POFWARN = 2,
  USBDETECTED = 7,
  USBREMOVED = 8,
  USBPWRRDY = 9,
  HFCLKRUN = 0x408,
  HFCLKSTAT = 0x40c,
  RESETREAS = 0x400,
  USBREGSTATUS = 0x438,
  POFCON = 0x510,
  APPROTECT_DISABLE = 0x558,
  DCDCEN = 0x578,
  CRYSTAL_START_TICKS = 64 * 360,    /* t_START of the 32 MHz crystal */
  REGULATOR_START_TICKS = 64 * 1000, /* until USBPWRRDY: its worst case */
};

static void crystal_started(void *owner, uint64_t at) {
  (void)at;
  struct nrf_power *c = owner;
  c->crystal_running = true;
  nrf_event(&c->p, HFCLKSTARTED);
}

static void regulator_started(void *owner, uint64_t at) {
  (void)at;
  struct nrf_power *c = owner;
  c->usb_supplied = true;
  nrf_event(&c->p, USBPWRRDY);
}

/* The USB regulator runs while the cable supplies 5 V and USBD is enabled. */
void nrf_power_usb(struct nrf52840 *chip) {
  struct nrf_power *c = &chip->power;
  if (!c->vbus || !chip->usbd.enable) {
    c->usb_supplied = false;
    event_cancel(&c->regulator);
  } else if (!c->usb_supplied && c->regulator.at == NEVER) {
    event_at(chip->m, &c->regulator, chip->m->now + REGULATOR_START_TICKS);
  }
}

void nrf_power_vbus(struct nrf52840 *chip, bool present) {
  struct nrf_power *c = &chip->power;
  if (c->vbus == present)
    return;
  c->vbus = present;
  nrf_event(&c->p, present ? USBDETECTED : USBREMOVED);
  nrf_power_usb(chip);
}

static bool power_task(struct nrf_peripheral *p, uint32_t offset) {
  struct nrf_power *c = (struct nrf_power *)p;
  if (offset == HFCLKSTART)
    event_at(p->chip->m, &c->started, p->chip->m->now + CRYSTAL_START_TICKS);
  else if (offset == HFCLKSTOP)
    c->crystal_running = false;
  return offset == HFCLKSTART || offset == HFCLKSTOP;
}

static uint32_t clock_requested(void *owner) {
  const struct nrf_power *c = owner;
  return c->crystal_running || c->started.at != NEVER;
}

static uint32_t clock_status(void *owner) {
  const struct nrf_power *c = owner;
  return 1u << 16 | (c->crystal_running ? 1u : 0u);
}

static uint32_t usb_status(void *owner) {
  const struct nrf_power *c = owner;
  return (c->vbus ? 1u : 0u) | (c->usb_supplied ? 2u : 0u);
}

/* Threshold 4 is 1.7 V; each step is 0.1 V. */
static void check_supply(void *chip) {
  struct nrf_power *c = &((struct nrf52840 *)chip)->power;
  const uint32_t threshold_mv = 1300 + 100 * (c->power_fail >> 1 & 15);
  if ((c->power_fail & 1) && c->p.chip->m->supply_mv < threshold_mv)
    nrf_event(&c->p, POFWARN);
}

static void power_fail_written(void *owner) {
  check_supply(((struct nrf_power *)owner)->p.chip);
}

#define OF_POWER(member) FIELD(struct nrf_power, member)
static const struct reg registers[] = {
    {HFCLKRUN, 4, .get = clock_requested},
    {HFCLKSTAT, 4, .get = clock_status},
    {USBREGSTATUS, 4, .get = usb_status},
    {APPROTECT_DISABLE, 4, PLAIN, OF_POWER(debug_opened)},
    {DCDCEN, 4, PLAIN, OF_POWER(converter), .most = 1},
    {RESETREAS, 4, CLEAR_ONES, OF_POWER(reset_reason)},
    {POFCON, 4, PLAIN, OF_POWER(power_fail), .most = 31,
     .after = power_fail_written},
    {0}};

void nrf_power_create(struct nrf52840 *chip) {
  struct nrf_power *c = &chip->power;
  c->p = (struct nrf_peripheral){
      .name = "CLOCK",
      .base = 0x40000000,
      .irq = 0,
      .known_events = 1 << HFCLKSTARTED | 1 << POFWARN | 1 << USBDETECTED |
                      1 << USBREMOVED | 1 << USBPWRRDY,
      .task = power_task,
      .registers = registers};
  static const uint8_t reasons[] = {
      [RESET_POWER_ON] = 0, [RESET_PIN] = 1,     [RESET_SOFTWARE] = 4,
      [RESET_WATCHDOG] = 2, [RESET_LOCK_UP] = 8, [RESET_BROWN_OUT] = 0};
  c->reset_reason = reasons[chip->config.cause];
  chip->m->supply_changed = check_supply;
  event_add(chip->m, &c->started, crystal_started, c);
  event_add(chip->m, &c->regulator, regulator_started, c);
  nrf_add(chip, &c->p);
}
