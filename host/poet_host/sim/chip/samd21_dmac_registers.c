/* samd21_dmac_registers.c - the registers of the DMAC (section 20.8). Registers
   of a channel act on the channel that CHID selects. Enabling a channel fetches
   its descriptor, and checks erratum 1.7.2. */
#include "samd21_dmac.h"

#include <string.h>

enum {
  BASE = 0x41004800,
  CTRL = 0x00,
  CRCCTRL = 0x02,
  CRCCHKSUM = 0x08,
  CRCSTATUS = 0x0c,
  QOSCTRL = 0x0e,
  SWTRIGCTRL = 0x10,
  PRICTRL0 = 0x14,
  INTPEND = 0x20,
  INTSTATUS = 0x24,
  BASEADDR = 0x34,
  WRBADDR = 0x38,
  CHID = 0x3f,
  CHCTRLA = 0x40,
  CHCTRLB = 0x44,
  CHINTENCLR = 0x4c,
  CHINTENSET = 0x4d,
  CHINTFLAG = 0x4e,
  CHSTATUS = 0x4f,
  TRIGACT_BEAT = 2,
};

static void check_erratum(struct samd21_dmac *d, unsigned index) {
  for (unsigned i = index + 1; i < SAMD21_CHANNELS; i++)
    if ((d->channels[i].control_a & CHANNEL_ENABLE) && d->channels[i].linked)
      machine_stop(d->chip->m, RUN_FAULT,
                   "DMAC channel %u is enabled while channel %u, a higher "
                   "number, runs linked descriptors: its descriptor may be "
                   "fetched wrongly (errata 1.7.2)",
                   index, i);
}

static void enable_channel(struct samd21_dmac *d, uint32_t value) {
  unsigned index = d->selected;
  struct samd21_channel *c = &d->channels[index];
  bool was = c->control_a & CHANNEL_ENABLE;
  if (value & 1) { /* software reset */
    *c = (struct samd21_channel){0};
    d->requests &= ~(1u << index);
    samd21_dmac_raise(d);
    return;
  }
  c->control_a = (uint8_t)value;
  if (was && !(value & CHANNEL_ENABLE)) {
    samd21_dmac_write_back(d, index);
    c->linked = false;
    d->requests &= ~(1u << index);
  }
  if (was || !(value & CHANNEL_ENABLE))
    return;
  unsigned trigger = c->control_b >> 8 & 63;
  if (trigger && (c->control_b >> 22 & 3) != TRIGACT_BEAT)
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC channel %u: a peripheral's trigger is modelled for "
                 "single beats (TRIGACT 2) only",
                 index);
  if (trigger > 2 * SAMD21_SERCOMS)
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC channel %u: trigger 0x%02x is not modelled", index,
                 trigger);
  check_erratum(d, index);
  c->linked = false;
  c->status = 0;
  samd21_dmac_fetch(d, index, d->base + 16 * index);
  samd21_dmac_trigger(d->chip, trigger);
}

static bool control_write(struct samd21_dmac *d, uint32_t value) {
  if (value & 1) {
    memset(d->channels, 0, sizeof d->channels);
    d->control = d->crc_control = 0;
    d->requests = d->crc = 0;
    samd21_dmac_raise(d);
    return true;
  }
  if ((value & CTRL_ENABLE) && !(d->control & CTRL_ENABLE) &&
      (d->base % 16 || d->write_back % 16 || !d->base || !d->write_back))
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC: BASEADDR and WRBADDR must point to 128-bit aligned "
                 "RAM before it is enabled");
  d->control = (uint16_t)value;
  return true;
}

static uint32_t interrupt_status(const struct samd21_dmac *d) {
  uint32_t value = 0;
  for (unsigned i = 0; i < SAMD21_CHANNELS; i++)
    if (d->channels[i].flags & d->channels[i].enabled_interrupts)
      value |= 1u << i;
  return value;
}

static uint32_t interrupt_pending(const struct samd21_dmac *d) {
  uint32_t status = interrupt_status(d);
  if (!status)
    return 0;
  unsigned index = (unsigned)__builtin_ctz(status);
  const struct samd21_channel *c = &d->channels[index];
  return index | (uint32_t)c->flags << 8 |
         (c->status & STATUS_FERR ? 1u << 13 : 0);
}

static bool dmac_read(void *owner, uint32_t offset, unsigned size,
                      uint32_t *value) {
  struct samd21_dmac *d = owner;
  const struct samd21_channel *c = &d->channels[d->selected];
  if (!samd21_bus_clock(d->chip, 1, APBB_DMAC, "DMAC"))
    return true;
  switch (offset) {
  case CTRL:
    *value = d->control;
    return size == 2;
  case CRCCTRL:
    *value = d->crc_control;
    return size == 2;
  case CRCCHKSUM:
    *value = d->crc;
    return size == 4;
  case CRCSTATUS:
    *value = d->crc == 0 ? 2 : 0;
    return size == 1;
  case INTPEND:
    *value = interrupt_pending(d);
    return size == 2;
  case INTSTATUS:
    *value = interrupt_status(d);
    return size == 4;
  case CHID:
    *value = d->selected;
    return size == 1;
  case CHCTRLA:
    *value = c->control_a;
    return size == 1;
  case CHCTRLB:
    *value = c->control_b;
    return size == 4;
  case CHINTENCLR:
  case CHINTENSET:
    *value = c->enabled_interrupts;
    return size == 1;
  case CHINTFLAG:
    *value = c->flags;
    return size == 1;
  case CHSTATUS:
    *value = c->status;
    return size == 1;
  default:
    return false;
  }
}

static bool channel_write(struct samd21_dmac *d, uint32_t offset, unsigned size,
                          uint32_t value) {
  struct samd21_channel *c = &d->channels[d->selected];
  switch (offset) {
  case CHCTRLA:
    enable_channel(d, value);
    return size == 1;
  case CHCTRLB:
    c->control_b = value & 0x00ffffffu;
    if (value >> 24 == 2 && (c->flags & FLAG_SUSP)) /* resume */
      samd21_dmac_trigger(d->chip, 0);
    return size == 4;
  case CHINTENCLR:
    c->enabled_interrupts &= (uint8_t)~value;
    break;
  case CHINTENSET:
    c->enabled_interrupts |= value & 7;
    break;
  case CHINTFLAG:
    c->flags &= (uint8_t)~value;
    break;
  default:
    return false;
  }
  samd21_dmac_raise(d);
  return size == 1;
}

static bool dmac_write(void *owner, uint32_t offset, unsigned size,
                       uint32_t value) {
  struct samd21_dmac *d = owner;
  if (!samd21_bus_clock(d->chip, 1, APBB_DMAC, "DMAC"))
    return true;
  switch (offset) {
  case CTRL:
    return size == 2 && control_write(d, value);
  case CRCCTRL:
    d->crc_control = (uint16_t)value;
    return size == 2 && !(value & 0x0c); /* CRC-16 only */
  case CRCCHKSUM:
    d->crc = value & 0xffff;
    return size == 4;
  case CRCSTATUS:
    return size == 1;
  case QOSCTRL:
    return size == 1;
  case PRICTRL0:
    return size == 4 && value == 0;
  case SWTRIGCTRL:
    d->requests |= value;
    samd21_dmac_trigger(d->chip, 0);
    return size == 4;
  case INTPEND:
    d->selected = value & 15;
    d->channels[d->selected].flags &= (uint8_t)~(value >> 8);
    samd21_dmac_raise(d);
    return size == 2;
  case BASEADDR:
    d->base = value;
    return size == 4;
  case WRBADDR:
    d->write_back = value;
    return size == 4;
  case CHID:
    d->selected = value & 15;
    return size == 1 && d->selected < SAMD21_CHANNELS;
  default:
    return channel_write(d, offset, size, value);
  }
}

void samd21_dmac_create(struct samd21 *chip) {
  struct samd21_dmac *d = &chip->dmac;
  d->chip = chip;
  event_add(chip->m, &d->kick, samd21_dmac_serve, d);
  machine_map(chip->m,
              &(struct region){"DMAC", BASE, 0x400, d, dmac_read, dmac_write});
}
