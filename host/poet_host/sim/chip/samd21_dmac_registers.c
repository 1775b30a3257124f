/* samd21_dmac_registers.c - the registers of the DMAC (section 20.8). Registers
   of a channel act on the channel that CHID selects. Enabling a channel fetches
   its descriptor, and checks erratum 1.7.2. */
#include "samd21_dmac.h"

enum {
  BASE = 0x41004800,
  CTRL = 0x00,
  CRCCTRL = 0x02,
  CRCDATAIN = 0x04,
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
  CHANNEL = 0x40, /* the selected one */
  CHCTRLA = 0x0,
  CHCTRLB = 0x4,
  CHINTENCLR = 0xc,
  CHINTENSET = 0xd,
  CHINTFLAG = 0xe,
  CHSTATUS = 0xf,
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

static bool write_channel(void *owner, uint32_t value) {
  struct samd21_channel *c = owner;
  struct samd21_dmac *d = c->dmac;
  const unsigned index = (unsigned)(c - d->channels);
  const bool was = c->control_a & CHANNEL_ENABLE;
  if (value & 1) { /* software reset */
    *c = (struct samd21_channel){.dmac = d};
    d->requests &= ~(1u << index);
    samd21_dmac_raise(d);
    return true;
  }
  c->control_a = (uint8_t)value;
  if (was && !(value & CHANNEL_ENABLE)) {
    samd21_dmac_write_back(d, index);
    c->linked = false;
    d->requests &= ~(1u << index);
  }
  if (was || !(value & CHANNEL_ENABLE))
    return true;
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
  machine_check_stores(d->chip->m, "a channel of the DMAC");
  c->linked = false;
  c->status = 0;
  samd21_dmac_fetch(d, index, d->base + 16 * index);
  samd21_dmac_kick(d->chip);
  return true;
}

static void reset_channels(struct samd21_dmac *d) {
  for (unsigned i = 0; i < SAMD21_CHANNELS; i++)
    d->channels[i] = (struct samd21_channel){.dmac = d};
}

static bool write_control(void *owner, uint32_t value) {
  struct samd21_dmac *d = owner;
  if (value & 1) {
    reset_channels(d);
    d->control = d->crc_control = 0;
    d->requests = d->crc = 0;
    d->crc_busy_until = 0;
    d->crc_busy = false;
    samd21_dmac_raise(d);
    return true;
  }
  if ((value & CTRL_ENABLE) && !(d->control & CTRL_ENABLE) &&
      (d->base % 16 || d->write_back % 16 || !d->base || !d->write_back))
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC: BASEADDR and WRBADDR must point to 128-bit aligned "
                 "RAM before it is enabled");
  d->control = (uint16_t)(d->crc_busy ? value | CTRL_CRC : value);
  return true;
}

static uint32_t interrupt_status(void *owner) {
  const struct samd21_dmac *d = owner;
  uint32_t value = 0;
  for (unsigned i = 0; i < SAMD21_CHANNELS; i++)
    if (d->channels[i].flags & d->channels[i].enabled_interrupts)
      value |= 1u << i;
  return value;
}

static uint32_t interrupt_pending(void *owner) {
  const struct samd21_dmac *d = owner;
  const uint32_t status = interrupt_status(owner);
  if (!status)
    return 0;
  unsigned index = (unsigned)__builtin_ctz(status);
  const struct samd21_channel *c = &d->channels[index];
  return index | (uint32_t)c->flags << 8 |
         (c->status & STATUS_FERR ? 1u << 13 : 0);
}

static bool write_pending(void *owner, uint32_t value) {
  struct samd21_dmac *d = owner;
  if ((value & 15) >= SAMD21_CHANNELS)
    return false;
  d->selected = value & 15;
  d->channels[d->selected].flags &= (uint8_t)~(value >> 8);
  return true;
}

/* -- the CRC unit (20.6.3.7, 20.8.2 to 20.8.5) -- */

static bool reads_words(const struct samd21_dmac *d) {
  return (d->crc_control >> 8 & 63) == CRC_SOURCE_IO;
}

static void check_crc_disabled(struct samd21_dmac *d, const char *name) {
  if (d->control & CTRL_CRC)
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC: %s is enable-protected: clear CTRL.CRCENABLE first",
                 name);
}

/* The unit takes one cycle for a byte. The clock is at the end of the running
   block of code, so the check allows the mean rate of that block. */
static void check_crc_idle(struct samd21_dmac *d, const char *what) {
  if (reads_words(d) && d->crc_busy_until > d->chip->m->now)
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC: %s while the CRC unit works on earlier data, one cycle "
                 "for each byte",
                 what);
}

static bool write_crc_control(void *owner, uint32_t value) {
  struct samd21_dmac *d = owner;
  const unsigned source = value >> 8 & 63;
  check_crc_disabled(d, "CRCCTRL");
  d->crc_control = (uint16_t)value;
  return !(value & CRC_UNKNOWN) && (value & CRC_BEAT_SIZE) != CRC_BEAT_SIZE &&
         (source <= CRC_SOURCE_IO ||
          source - CRC_SOURCE_CHANNEL < SAMD21_CHANNELS);
}

static bool write_crc_data(void *owner, uint32_t value) {
  struct samd21_dmac *d = owner;
  const unsigned size = 1u << (d->crc_control & CRC_BEAT_SIZE);
  const uint8_t bytes[4] = {(uint8_t)value, (uint8_t)(value >> 8),
                            (uint8_t)(value >> 16), (uint8_t)(value >> 24)};
  if (!(d->control & CTRL_CRC) || !reads_words(d))
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC: CRCDATAIN written while the CRC unit does not read it: "
                 "set CRCSRC to 1 and CTRL.CRCENABLE first");
  check_crc_idle(d, "CRCDATAIN written");
  if (d->crc_busy_until < d->chip->m->began)
    d->crc_busy_until = d->chip->m->began;
  d->crc_busy_until += size;
  d->crc_busy = true;
  samd21_dmac_crc(d, bytes, size);
  return true;
}

static bool write_checksum(void *owner, uint32_t value) {
  struct samd21_dmac *d = owner;
  check_crc_disabled(d, "CRCCHKSUM");
  d->crc = value;
  return true;
}

/* A checksum of CRC-32 is read with its bits reversed and complemented, but
   written as it is. */
static uint32_t checksum(void *owner) {
  struct samd21_dmac *d = owner;
  uint32_t reversed = 0;
  check_crc_idle(d, "CRCCHKSUM read");
  if (d->crc_busy)
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC: CRCCHKSUM read while CRCBUSY is set: write 1 to it "
                 "first");
  if (!(d->crc_control & CRC_32))
    return d->crc & 0xffff;
  for (unsigned bit = 0; bit < 32; bit++)
    reversed |= (d->crc >> bit & 1) << (31 - bit);
  return ~reversed;
}

/* With the I/O interface, CRCBUSY stays set until 1 is written to it, and
   CTRL.CRCENABLE until then, too (20.8.1, 20.8.5). */
static bool write_crc_status(void *owner, uint32_t value) {
  struct samd21_dmac *d = owner;
  d->crc_busy &= !(value & 1);
  return true;
}

static uint32_t crc_status(void *owner) {
  const struct samd21_dmac *d = owner;
  if (reads_words(d))
    machine_stop(d->chip->m, RUN_FAULT,
                 "DMAC: CRCSTATUS read with the I/O interface: the data sheet "
                 "describes CRCBUSY in two ways (20.6.3.7, 20.8.5)");
  return d->crc_control && d->crc == 0 ? 2 : 0;
}

static void requested(void *owner) {
  const struct samd21_dmac *d = owner;
  samd21_dmac_kick(d->chip);
}

static bool write_channel_control(void *owner, uint32_t value) {
  struct samd21_channel *c = owner;
  c->control_b = value & 0x00ffffffu;
  if (value >> 24 == 2 && (c->flags & FLAG_SUSP)) /* resume */
    samd21_dmac_kick(c->dmac->chip);
  return true;
}

static void raise_channel(void *owner) {
  const struct samd21_channel *c = owner;
  samd21_dmac_raise(c->dmac);
}

#define OF_CHANNEL(member) FIELD(struct samd21_channel, member)
static const struct reg channel_registers[] = {
    {CHCTRLA, 1, BY_FUNCTION, OF_CHANNEL(control_a), .set = write_channel},
    {CHCTRLB, 4, BY_FUNCTION, OF_CHANNEL(control_b),
     .set = write_channel_control},
    {CHINTENCLR, 1, CLEAR_ONES, OF_CHANNEL(enabled_interrupts),
     .after = raise_channel},
    {CHINTENSET, 1, SET_ONES, OF_CHANNEL(enabled_interrupts), .mask = 7,
     .after = raise_channel},
    {CHINTFLAG, 1, CLEAR_ONES, OF_CHANNEL(flags), .after = raise_channel},
    {CHSTATUS, 1, READ_ONLY, OF_CHANNEL(status)},
    {0}};

static void *selected_channel(void *owner, unsigned k) {
  struct samd21_dmac *d = owner;
  (void)k;
  return &d->channels[d->selected];
}

#define OF_DMAC(member) FIELD(struct samd21_dmac, member)
static const struct reg registers[] = {
    {CTRL, 2, BY_FUNCTION, OF_DMAC(control), .set = write_control},
    {CRCCTRL, 2, BY_FUNCTION, OF_DMAC(crc_control), .set = write_crc_control},
    {CRCDATAIN, 4, .on_write = WRITE_ONLY, .set = write_crc_data},
    {CRCCHKSUM, 4, BY_FUNCTION, .get = checksum, .set = write_checksum},
    {CRCSTATUS, 1, BY_FUNCTION, .get = crc_status, .set = write_crc_status},
    {QOSCTRL, 1, .on_write = WRITE_ONLY},
    {SWTRIGCTRL, 4, SET_ONES, OF_DMAC(requests), .after = requested},
    {PRICTRL0, 4, .on_write = ZERO_ONLY},
    {INTPEND, 2, BY_FUNCTION, .get = interrupt_pending, .set = write_pending,
     .after = samd21_dmac_raise},
    {INTSTATUS, 4, .get = interrupt_status},
    {BASEADDR, 4, PLAIN, OF_DMAC(base)},
    {WRBADDR, 4, PLAIN, OF_DMAC(write_back)},
    {CHID, 1, PLAIN, OF_DMAC(selected), .mask = 15,
     .most = SAMD21_CHANNELS - 1},
    {CHANNEL, .stride = 0x10, .part = selected_channel,
     .table = channel_registers},
    {0}};

static bool clocked(void *owner) {
  const struct samd21_dmac *d = owner;
  return samd21_bus_clock(d->chip, 1, APBB_DMAC, "DMAC");
}

void samd21_dmac_create(struct samd21 *chip) {
  struct samd21_dmac *d = &chip->dmac;
  d->chip = chip;
  reset_channels(d);
  event_add(chip->m, &d->kick, samd21_dmac_serve, d);
  machine_map(chip->m,
              &(struct region){"DMAC", BASE, 0x400, d, .registers = registers,
                               .ready = clocked});
}
