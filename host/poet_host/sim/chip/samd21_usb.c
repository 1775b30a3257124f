/* samd21_usb.c - USB as a full-speed device (section 32): its registers. Host
   mode, isochronous endpoints and two banks for one direction are not modelled.

   State: struct samd21_usb. Descriptors and data of the endpoints are in RAM,
   at `descriptors`; samd21_usb_bus.c reads them when a transaction needs them.
   When the program enables USB, the model checks clocks, pins and calibration
   for the values that the data sheet demands. */
#include "samd21_usb.h"

#include <string.h>

enum {
  BASE = 0x41005000,
  CTRLA = 0x00,
  SYNCBUSY = 0x02,
  QOSCTRL = 0x03,
  CTRLB = 0x08,
  DADD = 0x0a,
  FSMSTATUS = 0x0d,
  FNUM = 0x10,
  INTENCLR = 0x14,
  INTENSET = 0x18,
  INTFLAG = 0x1c,
  EPINTSMRY = 0x20,
  DESCADD = 0x24,
  PADCAL = 0x28,
  ENDPOINT = 0x100, /* endpoint n: + 0x20 n */
  EPCFG = 0x0,
  EPSTATUSCLR = 0x4,
  EPSTATUSSET = 0x5,
  EPSTATUS = 0x6,
  EPINTFLAG = 0x7,
  EPINTENCLR = 0x8,
  EPINTENSET = 0x9,

  CTRLA_SWRST = 1,
  CTRLA_ENABLE = 2,
  CTRLA_MODE = 0x80,
  CTRLB_DETACH = 1,
  CTRLB_COVERED = CTRLB_DETACH, /* full speed, nothing special */
  IRQ = 7,
  APBB_USB = 5,
  AHB_USB = 6,
  CLOCK_USB = 6,
  CLOCK_HZ = 48000000,
  CLOCK_OFF_HZ = CLOCK_HZ / 400, /* 0.25 % (USB 2.0, 7.1.11) */
  PIN_DM = 24,
  PIN_DP = 25,
  FUNCTION_G = 6,
  SYNC_TICKS = 24,
};

void samd21_usb_stop(struct samd21_usb *u, const char *text) {
  machine_stop(u->chip->m, RUN_FAULT, "USB: %s", text);
}

void samd21_usb_raise(void *owner) {
  struct samd21_usb *u = owner;
  u->summary = 0;
  for (unsigned n = 0; n < SAMD21_ENDPOINTS; n++)
    if (u->endpoints[n].flags & u->endpoints[n].enabled_interrupts)
      u->summary |= (uint8_t)(1u << n);
  machine_irq(u->chip->m, IRQ,
              u->summary || (u->flags & u->enabled_interrupts) != 0);
}

bool samd21_usb_attached(const struct samd21_usb *u) {
  return (u->control_a & CTRLA_ENABLE) && !(u->control_b & CTRLB_DETACH);
}

/* -- registers -- */

/* Return true if PADCAL contains TRANSP, TRANSN and TRIM of the factory
   calibration (table 10-5). If the factory has left them blank, any value is
   allowed. */
static bool calibrated(const struct samd21_usb *u) {
  uint32_t word;
  memcpy(&word, u->chip->auxiliary + 0x6024, 4);
  const unsigned fields = word >> 13 & 0x1fff;
  const unsigned given =
      (u->pads >> 6 & 31) | (u->pads & 31u) << 5 | (u->pads >> 12 & 7u) << 10;
  return fields == 0x1fff || fields == given;
}

static void enable(struct samd21_usb *u) {
  const struct samd21 *chip = u->chip;
  const uint32_t hz = samd21_clock_hz(chip, CLOCK_USB);
  if (u->control_a & CTRLA_MODE)
    samd21_usb_stop(u, "host mode is not modelled");
  else if (hz < CLOCK_HZ - CLOCK_OFF_HZ || hz > CLOCK_HZ + CLOCK_OFF_HZ)
    samd21_usb_stop(u, "its generic clock (GCLK_USB) must run at 48 MHz");
  else if (!(chip->clock.ahb_mask >> AHB_USB & 1))
    samd21_usb_stop(u, "it has no clock for its memory accesses: PM.AHBMASK");
  else if (!samd21_pin_is(chip, PIN_DM, FUNCTION_G) ||
           !samd21_pin_is(chip, PIN_DP, FUNCTION_G))
    samd21_usb_stop(u, "PORT does not give it PA24 and PA25");
  else if (!calibrated(u))
    samd21_usb_stop(u, "PADCAL is not what the calibration area says");
  else if (!u->descriptors || u->descriptors % 4)
    samd21_usb_stop(u, "DESCADD must be the aligned address of a table in RAM");
}

static void changed(struct samd21_usb *u, bool was) {
  if (samd21_usb_attached(u) == was)
    return;
  if (!was)
    samd21_usb_fall_idle(u); /* until a host resets it */
  else
    event_cancel(&u->idle);
  u->state = was ? FSM_OFF : FSM_ON;
  usb_bus_pull_up(u->bus, !was);
}

static void reset_endpoints(struct samd21_usb *u) {
  for (unsigned n = 0; n < SAMD21_ENDPOINTS; n++)
    u->endpoints[n] = (struct samd21_endpoint){.usb = u};
}

static bool write_control_a(void *owner, uint32_t value) {
  struct samd21_usb *u = owner;
  const bool was = samd21_usb_attached(u);
  u->busy_until = u->chip->m->now + SYNC_TICKS;
  if (value & CTRLA_SWRST) {
    u->control_a = u->address = 0;
    u->control_b = CTRLB_DETACH;
    u->flags = u->enabled_interrupts = u->pads = 0;
    u->descriptors = 0;
    reset_endpoints(u);
    samd21_usb_raise(u);
  } else {
    const bool starts = value & ~u->control_a & CTRLA_ENABLE;
    u->control_a = (uint8_t)value;
    if (starts)
      enable(u);
  }
  changed(u, was);
  return true;
}

static bool write_control_b(void *owner, uint32_t value) {
  struct samd21_usb *u = owner;
  const bool was = samd21_usb_attached(u);
  u->control_b = (uint16_t)value;
  changed(u, was);
  return !(value & ~(uint32_t)CTRLB_COVERED);
}

static uint32_t synchronising(void *owner) {
  const struct samd21_usb *u = owner;
  return u->chip->m->now < u->busy_until || machine_hangs(u->chip->m, HANG_USB)
             ? 3
             : 0;
}

static uint32_t frame_number(void *owner) {
  const struct samd21_usb *u = owner;
  return usb_bus_frame(u->bus) << 3;
}

static void raise_endpoint(void *owner) {
  const struct samd21_endpoint *e = owner;
  samd21_usb_raise(e->usb);
}

static void banks_changed(void *owner) {
  const struct samd21_endpoint *e = owner;
  usb_bus_ready(e->usb->bus);
}

static bool write_config(void *owner, uint32_t value) {
  struct samd21_endpoint *e = owner;
  for (unsigned which = TAKE; which <= SEND; which++) {
    const unsigned type = value >> 4 * which & 7;
    if (type == TYPE_ISOCHRONOUS || type >= TYPE_DUAL_BANK)
      return false;
  }
  e->config = (uint8_t)value;
  if (!value) {
    e->flags = e->enabled_interrupts = 0;
    e->status &= (uint8_t)~(STATUS_STALLRQ | STATUS_STALLRQ << SEND);
  }
  return true;
}

static bool set_status(void *owner, uint32_t value) {
  struct samd21_endpoint *e = owner;
  if (value & e->status & STATUS_BKRDY << SEND)
    samd21_usb_stop(
        e->usb,
        "a packet is given to an endpoint that has not sent another yet");
  if (value & STATUS_BKRDY << SEND)
    machine_check_stores(e->usb->chip->m, "a transfer to USB's host");
  e->status |= (uint8_t)value;
  return true;
}

static bool clear_status(void *owner, uint32_t value) {
  struct samd21_endpoint *e = owner;
  if (value & STATUS_BKRDY)
    machine_check_stores(e->usb->chip->m, "a transfer from USB's host");
  e->status &= (uint8_t)~value;
  return true;
}

#define OF_ENDPOINT(member) FIELD(struct samd21_endpoint, member)
static const struct reg endpoint_registers[] = {
    {EPCFG, 1, BY_FUNCTION, OF_ENDPOINT(config), .set = write_config,
     .after = raise_endpoint},
    {EPSTATUSCLR, 1, WRITE_ONLY, .set = clear_status, .after = banks_changed},
    {EPSTATUSSET, 1, WRITE_ONLY, .set = set_status, .after = banks_changed},
    {EPSTATUS, 1, READ_ONLY, OF_ENDPOINT(status)},
    {EPINTFLAG, 1, CLEAR_ONES, OF_ENDPOINT(flags), .after = raise_endpoint},
    {EPINTENCLR, 1, CLEAR_ONES, OF_ENDPOINT(enabled_interrupts),
     .after = raise_endpoint},
    {EPINTENSET, 1, SET_ONES, OF_ENDPOINT(enabled_interrupts),
     .after = raise_endpoint},
    {0}};

static void *endpoint(void *owner, unsigned n) {
  struct samd21_usb *u = owner;
  return &u->endpoints[n];
}

#define OF_USB(member) FIELD(struct samd21_usb, member)
static const struct reg registers[] = {
    {CTRLA, 1, BY_FUNCTION, OF_USB(control_a), .set = write_control_a},
    {SYNCBUSY, 1, .get = synchronising},
    {QOSCTRL, 1, PLAIN, OF_USB(quality)},
    {CTRLB, 2, BY_FUNCTION, OF_USB(control_b), .set = write_control_b},
    {DADD, 1, PLAIN, OF_USB(address)},
    {FSMSTATUS, 1, READ_ONLY, OF_USB(state)},
    {FNUM, 2, .get = frame_number},
    {INTENCLR, 2, CLEAR_ONES, OF_USB(enabled_interrupts),
     .after = samd21_usb_raise},
    {INTENSET, 2, SET_ONES, OF_USB(enabled_interrupts),
     .after = samd21_usb_raise},
    {INTFLAG, 2, CLEAR_ONES, OF_USB(flags), .after = samd21_usb_raise},
    {EPINTSMRY, 2, READ_ONLY, OF_USB(summary)},
    {DESCADD, 4, PLAIN, OF_USB(descriptors)},
    {PADCAL, 2, PLAIN, OF_USB(pads)},
    {ENDPOINT, .count = SAMD21_ENDPOINTS, .stride = 0x20, .part = endpoint,
     .table = endpoint_registers},
    {0}};

static bool clocked(void *owner) {
  const struct samd21_usb *u = owner;
  return samd21_bus_clock(u->chip, 1, APBB_USB, "USB");
}

void samd21_usb_create(struct samd21 *chip) {
  struct samd21_usb *u = &chip->usb;
  u->chip = chip;
  u->control_b = CTRLB_DETACH;
  u->quality = 5;
  u->state = FSM_OFF;
  reset_endpoints(u);
  samd21_usb_connect(u);
  machine_map(chip->m,
              &(struct region){"USB", BASE, 0x400, u, .registers = registers,
                               .ready = clocked});
}
