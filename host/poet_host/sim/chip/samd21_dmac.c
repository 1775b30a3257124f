/* DMAC (section 20): beats on a peripheral's trigger, linked descriptors,
   software triggers, and the CRC-16 of a channel. */
#include "samd21.h"

#include <string.h>

enum {
  BASE = 0x41004800,
  IRQ = 6,
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
  CTRL_ENABLE = 2,
  CTRL_CRC = 4,
  CHANNEL_ENABLE = 2,
  FLAG_TERR = 1,
  FLAG_TCMPL = 2,
  FLAG_SUSP = 4,
  STATUS_FERR = 4,
  TRIGACT_BEAT = 2,
  BTCTRL_VALID = 1,
  BTCTRL_SRCINC = 1 << 10,
  BTCTRL_DSTINC = 1 << 11,
  BTCTRL_STEPS = 0xf000,
  BEAT_TICKS = 4,
  DATA = 0x28,
  SERCOM_BASE = 0x42000800,
};

struct descriptor { /* 20.10 */
  uint16_t control, count;
  uint32_t source, destination, next;
};

static void raise(struct samd21_dmac *d) {
  bool level = false;
  for (unsigned i = 0; i < SAMD21_CHANNELS; i++)
    level |= (d->channels[i].flags & d->channels[i].enabled_interrupts) != 0;
  irq_line(d->chip->m, IRQ, level);
}

static struct samd21_sercom *sercom_at(struct samd21_dmac *d,
                                       uint32_t address) {
  uint32_t offset = address - SERCOM_BASE;
  if (offset < SAMD21_SERCOMS * 0x400u && offset % 0x400 == DATA)
    return &d->chip->sercoms[offset / 0x400];
  return NULL;
}

static void write_back(struct samd21_dmac *d, unsigned index) {
  const struct samd21_channel *c = &d->channels[index];
  struct descriptor now = {c->block_control, c->beats_left, c->source,
                           c->destination, c->next};
  uint8_t *to = machine_dma(d->chip->m, "DMAC write-back",
                            d->write_back + 16 * index, sizeof now);
  if (to)
    memcpy(to, &now, sizeof now);
}

static void fetch(struct samd21_dmac *d, unsigned index, uint32_t address) {
  struct samd21_channel *c = &d->channels[index];
  struct descriptor next;
  const uint8_t *from =
      machine_dma_source(d->chip->m, "DMAC descriptor", address, sizeof next);
  if (!from)
    return;
  memcpy(&next, from, sizeof next);
  c->block_control = next.control;
  c->beats_left = next.count;
  c->source = next.source;
  c->destination = next.destination;
  c->next = next.next;
  c->linked |= next.next != 0;
  if (!(next.control & BTCTRL_VALID)) {
    c->status |= STATUS_FERR;
    c->flags |= FLAG_SUSP;
    raise(d);
  }
  if (next.control & BTCTRL_STEPS)
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC channel %u: address steps are not modelled", index);
}

/* -- beats -- */

static bool requested(struct samd21_dmac *d, unsigned index) {
  const struct samd21_channel *c = &d->channels[index];
  unsigned trigger = c->control_b >> 8 & 63;
  if (!(c->control_a & CHANNEL_ENABLE) || (c->flags & FLAG_SUSP))
    return false;
  if (trigger == 0)
    return d->requests >> index & 1;
  if (trigger > 2 * SAMD21_SERCOMS)
    return false;
  return samd21_sercom_requests(&d->chip->sercoms[(trigger - 1) / 2],
                                trigger % 2 == 0);
}

static void crc_bytes(struct samd21_dmac *d, unsigned index,
                      const uint8_t *bytes, unsigned size) {
  if (!(d->control & CTRL_CRC) || (d->crc_control >> 8 & 63) != 0x20 + index)
    return;
  for (unsigned i = 0; i < size; i++) { /* CRC-16: x^16 + x^12 + x^5 + 1 */
    uint16_t crc = (uint16_t)d->crc;
    uint16_t t = (uint16_t)(crc >> 8 ^ bytes[i]);
    t ^= t >> 4;
    d->crc = (uint16_t)(crc << 8 ^ t << 12 ^ t << 5 ^ t);
  }
}

static bool move(struct samd21_dmac *d, unsigned index) {
  struct samd21_channel *c = &d->channels[index];
  struct machine *m = d->chip->m;
  uint32_t size = 1u << (c->block_control >> 8 & 3);
  uint32_t left = c->beats_left * size;
  uint32_t from = c->source - (c->block_control & BTCTRL_SRCINC ? left : 0);
  uint32_t to = c->destination - (c->block_control & BTCTRL_DSTINC ? left : 0);
  struct samd21_sercom *source = sercom_at(d, from);
  struct samd21_sercom *destination = sercom_at(d, to);
  uint8_t beat[4] = {0};
  if (source) {
    beat[0] = samd21_sercom_dma_read(source);
  } else {
    const uint8_t *bytes = machine_dma_source(m, "DMAC", from, size);
    if (!bytes)
      return false;
    memcpy(beat, bytes, size);
  }
  crc_bytes(d, index, beat, size);
  if (destination) {
    samd21_sercom_dma_write(destination, beat[0]);
  } else {
    uint8_t *bytes = machine_dma(m, "DMAC", to, size);
    if (!bytes)
      return false;
    memcpy(bytes, beat, size);
  }
  return true;
}

static void block_done(struct samd21_dmac *d, unsigned index) {
  struct samd21_channel *c = &d->channels[index];
  unsigned action = c->block_control >> 3 & 3;
  uint32_t next = c->next;
  c->block_control &= (uint16_t)~BTCTRL_VALID;
  write_back(d, index);
  if (action & 1)
    c->flags |= FLAG_TCMPL;
  if (action & 2)
    c->flags |= FLAG_SUSP;
  if (next) {
    fetch(d, index, next);
  } else {
    c->flags |= FLAG_TCMPL;
    c->control_a &= (uint8_t)~CHANNEL_ENABLE;
    c->linked = false;
    d->requests &= ~(1u << index);
  }
  raise(d);
}

static void serve(void *owner, uint64_t at) {
  struct samd21_dmac *d = owner;
  if (!(d->control & CTRL_ENABLE))
    return;
  unsigned index = 0; /* the lowest channel first */
  while (index < SAMD21_CHANNELS && !requested(d, index))
    index++;
  if (index == SAMD21_CHANNELS || !move(d, index))
    return;
  if (--d->channels[index].beats_left == 0)
    block_done(d, index);
  event_at(d->chip->m, &d->kick, at + BEAT_TICKS);
}

void samd21_dmac_trigger(struct samd21 *chip, unsigned trigger) {
  (void)trigger;
  struct samd21_dmac *d = &chip->dmac;
  if ((d->control & CTRL_ENABLE) && d->kick.at == NEVER)
    event_at(chip->m, &d->kick, chip->m->now + BEAT_TICKS);
}

/* -- registers -- */

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
    raise(d);
    return;
  }
  c->control_a = (uint8_t)value;
  if (was && !(value & CHANNEL_ENABLE)) {
    write_back(d, index);
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
  fetch(d, index, d->base + 16 * index);
  samd21_dmac_trigger(d->chip, trigger);
}

static bool control_write(struct samd21_dmac *d, uint32_t value) {
  if (value & 1) {
    memset(d->channels, 0, sizeof d->channels);
    d->control = d->crc_control = 0;
    d->requests = d->crc = 0;
    raise(d);
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
  raise(d);
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
    raise(d);
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
  event_add(chip->m, &d->kick, serve, d);
  machine_map(chip->m,
              &(struct region){"DMAC", BASE, 0x400, d, dmac_read, dmac_write});
}
