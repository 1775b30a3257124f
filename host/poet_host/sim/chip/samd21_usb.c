/* samd21_usb.c - USB as a full-speed device (section 32): its registers. Host
   mode, isochronous endpoints and two banks for one direction are not modelled.

   State: struct samd21_usb. Descriptors and data of the endpoints are in RAM,
   at `descriptors`; samd21_usb_bus.c reads them when a transaction needs them.
   Enabling checks clocks, pins and calibration, which the data sheet demands.
 */
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
  ENDPOINT = 0x100, /* and every 0x20 */
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

void samd21_usb_raise(struct samd21_usb *u) {
  u->summary = 0;
  for (unsigned n = 0; n < SAMD21_ENDPOINTS; n++)
    if (u->endpoints[n].flags & u->endpoints[n].enabled_interrupts)
      u->summary |= (uint8_t)(1u << n);
  irq_line(u->chip->m, IRQ,
           u->summary || (u->flags & u->enabled_interrupts) != 0);
}

bool samd21_usb_attached(const struct samd21_usb *u) {
  return (u->control_a & CTRLA_ENABLE) && !(u->control_b & CTRLB_DETACH);
}

/* -- registers -- */

/* Does PADCAL contain TRANSP, TRANSN and TRIM of the factory (table 10-5)? If
   the factory has left them blank, any value is allowed. */
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
  u->state = FSM_ON;
  usb_bus_pull_up(u->bus, !was);
}

static void write_control_a(struct samd21_usb *u, uint8_t value) {
  const bool was = samd21_usb_attached(u);
  u->busy_until = u->chip->m->now + SYNC_TICKS;
  if (value & CTRLA_SWRST) {
    u->control_a = u->address = 0;
    u->control_b = CTRLB_DETACH;
    u->flags = u->enabled_interrupts = u->pads = 0;
    u->descriptors = 0;
    memset(u->endpoints, 0, sizeof u->endpoints);
    samd21_usb_raise(u);
  } else {
    const bool starts = value & ~u->control_a & CTRLA_ENABLE;
    u->control_a = value;
    if (starts)
      enable(u);
  }
  changed(u, was);
}

static bool write_control_b(struct samd21_usb *u, uint32_t value) {
  const bool was = samd21_usb_attached(u);
  u->control_b = (uint16_t)value;
  changed(u, was);
  return !(value & ~(uint32_t)CTRLB_COVERED);
}

static bool write_config(struct samd21_usb *u, struct samd21_endpoint *e,
                         uint8_t value) {
  for (unsigned which = TAKE; which <= SEND; which++) {
    const unsigned type = value >> 4 * which & 7;
    if (type == TYPE_ISOCHRONOUS || type >= TYPE_DUAL_BANK)
      return false;
  }
  e->config = value;
  if (!value) {
    e->flags = e->enabled_interrupts = 0;
    e->status &= (uint8_t)~(STATUS_STALLRQ | STATUS_STALLRQ << SEND);
  }
  samd21_usb_raise(u);
  return true;
}

static void write_status(struct samd21_usb *u, struct samd21_endpoint *e,
                         uint8_t value, bool set) {
  if (set && (value & e->status & STATUS_BKRDY << SEND))
    samd21_usb_stop(
        u, "a packet is given to an endpoint that has not sent another yet");
  e->status = (uint8_t)(set ? e->status | value : e->status & (uint8_t)~value);
  usb_bus_ready(u->bus);
}

static bool read_endpoint(const struct samd21_endpoint *e, uint32_t offset,
                          uint32_t *value) {
  switch (offset) {
  case EPCFG:
    *value = e->config;
    return true;
  case EPSTATUSCLR:
  case EPSTATUSSET:
  case EPSTATUS:
    *value = e->status;
    return true;
  case EPINTFLAG:
    *value = e->flags;
    return true;
  case EPINTENCLR:
  case EPINTENSET:
    *value = e->enabled_interrupts;
    return true;
  default:
    return false;
  }
}

static bool write_endpoint(struct samd21_usb *u, struct samd21_endpoint *e,
                           uint32_t offset, uint8_t value) {
  switch (offset) {
  case EPCFG:
    return write_config(u, e, value);
  case EPSTATUSCLR:
  case EPSTATUSSET:
    write_status(u, e, value, offset == EPSTATUSSET);
    return true;
  case EPINTFLAG:
    e->flags &= (uint8_t)~value;
    break;
  case EPINTENCLR:
    e->enabled_interrupts &= (uint8_t)~value;
    break;
  case EPINTENSET:
    e->enabled_interrupts |= value;
    break;
  default:
    return false;
  }
  samd21_usb_raise(u);
  return true;
}

static bool usb_read(void *owner, uint32_t offset, unsigned size,
                     uint32_t *value) {
  struct samd21_usb *u = owner;
  if (!samd21_bus_clock(u->chip, 1, APBB_USB, "USB"))
    return true;
  if (offset >= ENDPOINT)
    return size == 1 && offset < ENDPOINT + 0x20 * SAMD21_ENDPOINTS &&
           read_endpoint(&u->endpoints[(offset - ENDPOINT) / 0x20],
                         offset % 0x20, value);
  switch (offset) {
  case CTRLA:
    *value = u->control_a;
    return size == 1;
  case SYNCBUSY:
    *value = u->chip->m->now < u->busy_until ? 3 : 0;
    return size == 1;
  case QOSCTRL:
    *value = u->quality;
    return size == 1;
  case CTRLB:
    *value = u->control_b;
    return size == 2;
  case DADD:
    *value = u->address;
    return size == 1;
  case FSMSTATUS:
    *value = u->state;
    return size == 1;
  case FNUM:
    *value = usb_bus_frame(u->bus) << 3;
    return size == 2;
  case INTENCLR:
  case INTENSET:
    *value = u->enabled_interrupts;
    return size == 2;
  case INTFLAG:
    *value = u->flags;
    return size == 2;
  case EPINTSMRY:
    *value = u->summary;
    return size == 2;
  case DESCADD:
    *value = u->descriptors;
    return size == 4;
  case PADCAL:
    *value = u->pads;
    return size == 2;
  default:
    return false;
  }
}

static bool usb_write(void *owner, uint32_t offset, unsigned size,
                      uint32_t value) {
  struct samd21_usb *u = owner;
  if (!samd21_bus_clock(u->chip, 1, APBB_USB, "USB"))
    return true;
  if (offset >= ENDPOINT)
    return size == 1 && offset < ENDPOINT + 0x20 * SAMD21_ENDPOINTS &&
           write_endpoint(u, &u->endpoints[(offset - ENDPOINT) / 0x20],
                          offset % 0x20, (uint8_t)value);
  switch (offset) {
  case CTRLA:
    write_control_a(u, (uint8_t)value);
    return size == 1;
  case QOSCTRL:
    u->quality = (uint8_t)value;
    return size == 1;
  case CTRLB:
    return size == 2 && write_control_b(u, value);
  case DADD:
    u->address = (uint8_t)value;
    return size == 1;
  case INTENCLR:
    u->enabled_interrupts &= (uint16_t)~value;
    break;
  case INTENSET:
    u->enabled_interrupts |= (uint16_t)value;
    break;
  case INTFLAG:
    u->flags &= (uint16_t)~value;
    break;
  case DESCADD:
    u->descriptors = value;
    return size == 4;
  case PADCAL:
    u->pads = (uint16_t)value;
    return size == 2;
  default:
    return false;
  }
  samd21_usb_raise(u);
  return size == 2;
}

void samd21_usb_create(struct samd21 *chip) {
  struct samd21_usb *u = &chip->usb;
  u->chip = chip;
  u->control_b = CTRLB_DETACH;
  u->quality = 5;
  u->state = FSM_ON;
  samd21_usb_connect(u);
  machine_map(chip->m,
              &(struct region){"USB", BASE, 0x400, u, usb_read, usb_write});
}
