/* samd21_i2c.c - SERCOM as an I2C host, with one device on its bus, the board's
   sensor (section 28). There is no other host, so the bus is never busy.

   State: struct samd21_sercom. `phase` is what is on the wire; it ends with the
   event `shifted`. Then MB or SB is set, and the SERCOM holds SCL low
   (STATUS.CLKHOLD) until the program goes on. An operation while the one before
   is still synchronised, or while the SERCOM does not hold SCL, stops the
   machine: the chip would discard it. */
#include "samd21_sercom.h"
#include "scene.h"

enum {
  CTRLA_COVERED = 0x0030009e, /* RUNSTDBY, SDAHOLD, mode, ENABLE */
  SMEN = 1 << 8,
  CMD = 3 << 16,
  CMD_READ = 2 << 16,
  CMD_STOP = 3 << 16,
  ACKACT = 1 << 18, /* 1: no acknowledgement */
  BUSERR = 1,
  RXNACK = 4,
  BUSSTATE = 0x30,
  IDLE = 0x10,
  OWNER = 0x20,
  CLKHOLD = 0x80,
  READ = 1,
  RISE_NS = 100, /* of SCL, with the pull-ups of a board */
  FASTEST_HZ = 400000,
  ADDRESS_BITS = 10, /* start, address, direction, acknowledgement */
  BYTE_BITS = 9,
};

/* Ticks of a bit: section 28.6.2. BAUDLOW 0: it is BAUD. */
static uint64_t bit_ticks(const struct samd21_sercom *s) {
  const uint32_t high = s->baud & 0xff,
                 low = s->baud >> 8 ? s->baud >> 8 : high;
  return (10 + high + low) * (uint64_t)SAMD21_HZ / sercom_core_hz(s) +
         RISE_NS * (SAMD21_HZ / 1000000) / 1000;
}

static struct lsm6ds3 *sensor(const struct samd21_sercom *s) {
  const struct samd21_pads *pads = &s->chip->config.i2c;
  const bool wired = pads->pin_count && pads->sercom == s->index;
  return wired && s->chip->m->scene ? &s->chip->m->scene->sensor : NULL;
}

void i2c_enable(struct samd21_sercom *s) {
  s->status = 0; /* the state of the bus is unknown */
  s->phase = I2C_NOTHING;
  if (s->control_a & ~(uint32_t)CTRLA_COVERED)
    sercom_stop(
        s, "of the I2C host, only standard and fast mode without time-outs "
           "are modelled");
  if (SAMD21_HZ / bit_ticks(s) > FASTEST_HZ)
    sercom_stop(s, "SCL is faster than 400 kHz");
}

static void begin(struct samd21_sercom *s, enum i2c_phase phase,
                  unsigned bits) {
  s->phase = phase;
  s->status &= (uint16_t)~CLKHOLD;
  s->flags &= (uint8_t)~(I2C_MB | I2C_SB);
  sercom_raise(s);
  event_at(s->chip->m, &s->shifted, s->chip->m->now + bits * bit_ticks(s));
}

static void hold(struct samd21_sercom *s, uint8_t flag, bool acknowledged) {
  s->phase = I2C_NOTHING;
  s->status &= (uint16_t)~RXNACK;
  s->status |= (uint16_t)(CLKHOLD | (acknowledged ? 0 : RXNACK));
  s->flags |= flag;
  sercom_raise(s);
}

void i2c_shifted(struct samd21_sercom *s) {
  struct lsm6ds3 *device = sensor(s);
  const bool reads = s->address & READ;
  if (s->phase == I2C_ADDRESS) {
    const bool found =
        device && lsm6ds3_start(device, (uint8_t)(s->address >> 1), reads);
    if (found && reads)
      begin(s, I2C_RECEIVING, BYTE_BITS - 1);
    else
      hold(s, I2C_MB, found);
  } else if (s->phase == I2C_SENDING) {
    const bool listens = device && !(s->status & RXNACK);
    hold(s, I2C_MB, listens && lsm6ds3_write(device, s->held));
  } else if (s->phase == I2C_RECEIVING) {
    s->received[0] = lsm6ds3_read(device);
    hold(s, I2C_SB, true);
  }
}

/* Return false, after a stop, if an operation cannot start now. */
static bool synchronised(struct samd21_sercom *s) {
  if (s->chip->m->now < s->busy_until) {
    sercom_stop(s, "an operation while SYNCBUSY is not 0");
    return false;
  }
  s->busy_until = s->chip->m->now + SYNC_TICKS;
  return true;
}

static bool holds(struct samd21_sercom *s, uint8_t flag, const char *text) {
  if ((s->status & CLKHOLD) && (s->flags & flag))
    return true;
  sercom_stop(s, text);
  return false;
}

bool i2c_status(struct samd21_sercom *s, uint32_t value) {
  if (!synchronised(s))
    return true;
  s->status &= (uint16_t)~(value & ~(uint32_t)(BUSSTATE | RXNACK | CLKHOLD));
  if ((value & BUSSTATE) == IDLE)
    s->status = (uint16_t)((s->status & ~BUSSTATE) | IDLE);
  return true;
}

bool i2c_address(struct samd21_sercom *s, uint32_t value) {
  if (value > 0xff)
    return false; /* LENEN, HS, TENBITEN */
  if (!synchronised(s))
    return true;
  s->address = (uint8_t)value;
  if (!(s->status & BUSSTATE)) { /* section 28.10, ADDR */
    s->status |= BUSERR;
    s->flags |= I2C_MB;
    sercom_raise(s);
  } else if (s->phase != I2C_NOTHING) {
    sercom_stop(s, "ADDR written while a byte is on the wire");
  } else {
    s->status = (uint16_t)((s->status & ~(BUSSTATE | RXNACK)) | OWNER);
    begin(s, I2C_ADDRESS, ADDRESS_BITS);
  }
  return true;
}

bool i2c_send(struct samd21_sercom *s, uint32_t value) {
  if (!synchronised(s) ||
      !holds(s, I2C_MB, "DATA written while INTFLAG.MB is clear"))
    return true;
  if (s->address & READ)
    sercom_stop(s, "DATA written after the address of a read");
  s->held = (uint8_t)value;
  begin(s, I2C_SENDING, BYTE_BITS);
  return true;
}

/* Acknowledge the byte before, and receive the next one. */
static void receive_next(struct samd21_sercom *s) {
  begin(s, I2C_RECEIVING, BYTE_BITS);
}

uint32_t i2c_receive(struct samd21_sercom *s) {
  if ((s->control_b & SMEN) && (s->flags & I2C_SB) && synchronised(s)) {
    if (!(s->control_b & ACKACT)) {
      receive_next(s);
    } else {
      s->flags &= (uint8_t)~I2C_SB;
      sercom_raise(s);
    }
  }
  return s->received[0];
}

static void command(struct samd21_sercom *s, uint32_t command) {
  const bool owns = (s->status & BUSSTATE) == OWNER;
  if (!owns || !(s->status & CLKHOLD)) {
    sercom_stop(s, "a command while it does not hold SCL");
  } else if (command == CMD_STOP) {
    if ((s->flags & I2C_SB) && !(s->control_b & ACKACT))
      sercom_stop(s,
                  "a stop after an acknowledged byte: the device drives SDA");
    s->flags &= (uint8_t)~(I2C_MB | I2C_SB);
    s->status = (uint16_t)((s->status & ~(BUSSTATE | CLKHOLD)) | IDLE);
    sercom_raise(s);
  } else if (command == CMD_READ && (s->address & READ)) {
    if (holds(s, I2C_SB, "a byte is read after the last one of the transfer"))
      receive_next(s);
  } else {
    sercom_stop(s, "this command is not modelled");
  }
}

bool i2c_control_b(struct samd21_sercom *s, uint32_t value, bool enabled) {
  const uint32_t changes = value ^ s->control_b;
  if (enabled && !synchronised(s))
    return true;
  if (enabled && (changes & ~(uint32_t)(CMD | ACKACT)))
    sercom_stop(s, "CTRLB is enable-protected: clear CTRLA.ENABLE first");
  s->control_b = value & ~(uint32_t)CMD;
  if (value & CMD)
    command(s, value & CMD);
  return true;
}
