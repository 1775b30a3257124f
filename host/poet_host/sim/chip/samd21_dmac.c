/* samd21_dmac.c - DMAC (section 20): beats on a peripheral's trigger, linked
   descriptors, software triggers, and the CRC of one channel (20.6.3.7).

   State: struct samd21_dmac and its channels. As on the chip, a channel copies
   its descriptor from RAM when it is enabled. At the end of a block the channel
   writes its descriptor back, and copies the linked one, if any. The event
   `kick` moves one beat of the channel with the lowest number among those with
   a request, and fires again while any channel has a request. */
#include "samd21_dmac.h"

#include <string.h>

enum {
  IRQ = 6,
  BTCTRL_VALID = 1,
  BTCTRL_SRCINC = 1 << 10,
  BTCTRL_DSTINC = 1 << 11,
  BTCTRL_STEPS = 0xf000,
  DATA = 0x28,
  SERCOM_BASE = 0x42000800,
};

struct descriptor { /* 20.10 */
  uint16_t control, count;
  uint32_t source, destination, next;
};

void samd21_dmac_raise(void *owner) {
  const struct samd21_dmac *d = owner;
  bool level = false;
  for (unsigned i = 0; i < SAMD21_CHANNELS; i++)
    level |= (d->channels[i].flags & d->channels[i].enabled_interrupts) != 0;
  machine_irq(d->chip->m, IRQ, level);
}

static struct samd21_sercom *sercom_at(struct samd21_dmac *d,
                                       uint32_t address) {
  uint32_t offset = address - SERCOM_BASE;
  if (offset < SAMD21_SERCOMS * 0x400u && offset % 0x400 == DATA)
    return &d->chip->sercoms[offset / 0x400];
  return NULL;
}

void samd21_dmac_write_back(struct samd21_dmac *d, unsigned index) {
  const struct samd21_channel *c = &d->channels[index];
  struct descriptor now = {c->block_control, c->beats_left, c->source,
                           c->destination, c->next};
  uint8_t *to = machine_dma(d->chip->m, "DMAC write-back",
                            d->write_back + 16 * index, sizeof now);
  if (to)
    memcpy(to, &now, sizeof now);
}

void samd21_dmac_fetch(struct samd21_dmac *d, unsigned index,
                       uint32_t address) {
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
    samd21_dmac_raise(d);
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

/* CRC-32 takes the lowest bit of a byte first. */
static void crc32_byte(struct samd21_dmac *d, uint8_t byte) {
  for (unsigned bit = 0; bit < 8; bit++) {
    const bool carry = (d->crc >> 31 ^ byte >> bit) & 1;
    d->crc = d->crc << 1 ^ (carry ? 0x04c11db7 : 0);
  }
}

void samd21_dmac_crc(struct samd21_dmac *d, const uint8_t *bytes,
                     unsigned size) {
  if (d->crc_control & CRC_32) {
    for (unsigned i = 0; i < size; i++)
      crc32_byte(d, bytes[i]);
    return;
  }
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
    beat[0] = (uint8_t)samd21_sercom_read(source);
  } else {
    const uint8_t *bytes = machine_dma_source(m, "DMAC", from, size);
    if (!bytes)
      return false;
    memcpy(beat, bytes, size);
  }
  if ((d->control & CTRL_CRC) &&
      (d->crc_control >> 8 & 63) == CRC_SOURCE_CHANNEL + index)
    samd21_dmac_crc(d, beat, size);
  if (destination) {
    samd21_sercom_write(destination, beat[0]);
  } else {
    uint8_t *bytes = machine_dma(m, "DMAC", to, size);
    if (!bytes)
      return false;
    memcpy(bytes, beat, size);
  }
  return true;
}

/* A bus error disables the channel ("Error Handling"). */
static bool has_bus_error(struct samd21_dmac *d, unsigned index) {
  struct samd21_channel *c = &d->channels[index];
  if (!machine_hangs(d->chip->m, HANG_BUS) || sercom_at(d, c->destination))
    return false;
  c->flags |= FLAG_TERR;
  c->control_a &= (uint8_t)~CHANNEL_ENABLE;
  samd21_dmac_raise(d);
  return true;
}

static void block_done(struct samd21_dmac *d, unsigned index) {
  struct samd21_channel *c = &d->channels[index];
  unsigned action = c->block_control >> 3 & 3;
  uint32_t next = c->next;
  c->block_control &= (uint16_t)~BTCTRL_VALID;
  samd21_dmac_write_back(d, index);
  if (action & 1)
    c->flags |= FLAG_TCMPL;
  if (action & 2)
    c->flags |= FLAG_SUSP;
  if (next) {
    samd21_dmac_fetch(d, index, next);
  } else {
    c->flags |= FLAG_TCMPL;
    c->control_a &= (uint8_t)~CHANNEL_ENABLE;
    c->linked = false;
    d->requests &= ~(1u << index);
  }
  samd21_dmac_raise(d);
}

void samd21_dmac_serve(void *owner, uint64_t at) {
  struct samd21_dmac *d = owner;
  if (!(d->control & CTRL_ENABLE))
    return;
  unsigned index = 0; /* the lowest channel first */
  while (index < SAMD21_CHANNELS && !requested(d, index))
    index++;
  if (index == SAMD21_CHANNELS)
    return;
  if (!has_bus_error(d, index)) {
    if (!move(d, index))
      return;
    if (--d->channels[index].beats_left == 0)
      block_done(d, index);
  }
  event_at(d->chip->m, &d->kick, at + BEAT_TICKS);
}

void samd21_dmac_kick(struct samd21 *chip) {
  struct samd21_dmac *d = &chip->dmac;
  if ((d->control & CTRL_ENABLE) && d->kick.at == NEVER &&
      !machine_hangs(chip->m, HANG_DMA))
    event_at(chip->m, &d->kick, chip->m->now + BEAT_TICKS);
}
