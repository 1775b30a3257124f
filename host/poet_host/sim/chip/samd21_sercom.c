/* samd21_sercom.c - SERCOM as a USART with internal clock (section 26) and as
   an SPI host (section 27). As an I2C host: samd21_i2c.c.

   State: struct samd21_sercom. A byte that is written waits in `held`, moves to
   `shifter`, and leaves it one byte time later (event `shifted`). Received
   bytes wait in `received`, which holds two; a third byte is lost (BUFOVF). The
   flags DRE and RXC follow from these fields and trigger DMA. An illegal use of
   a register stops the machine: a write to an enable-protected register while
   the SERCOM is enabled, or to DATA while DRE is clear. */
#include "samd21_sercom.h"

#include <stdio.h>

enum {
  BASE = 0x42000800,
  CTRLA = 0x00,
  CTRLB = 0x04,
  BAUD = 0x0c,
  INTENCLR = 0x14,
  INTENSET = 0x16,
  INTFLAG = 0x18,
  STATUS = 0x1a,
  SYNCBUSY = 0x1c,
  ADDR = 0x24,
  DATA = 0x28,
  CTRLA_SWRST = 1,
  CTRLA_ENABLE = 2,
  MODE_USART = 1,
  MODE_SPI_HOST = 3,
  MODE_I2C_HOST = 5,
  CTRLB_TXEN = 1 << 16,
  CTRLB_RXEN = 1 << 17,
  CTRLA_DORD = 1 << 30,
  FLAG_DRE = 1,
  FLAG_TXC = 2,
  FLAG_RXC = 4,
  FLAG_ERROR = 0x80,
  STATUS_BUFOVF = 4,
  MISO = 2, /* place of this pin in the SPI's pads, after MOSI and SCK */
  FASTEST_SPI_HZ = 12000000, /* t_SCK of 84 ns, table 37-58 */
};

static unsigned mode_of(const struct samd21_sercom *s) {
  return s->control_a >> 2 & 7;
}

static bool is_spi(const struct samd21_sercom *s) {
  return mode_of(s) == MODE_SPI_HOST;
}

static bool is_i2c(const struct samd21_sercom *s) {
  return mode_of(s) == MODE_I2C_HOST;
}

uint32_t sercom_core_hz(const struct samd21_sercom *s) {
  return samd21_clock_hz(s->chip, 0x14 + s->index);
}

/* Return the ticks of one byte on the wire. With a USART, start bit and stop
   bit are included. */
static uint64_t byte_ticks(const struct samd21_sercom *s) {
  uint64_t hz = sercom_core_hz(s), baud = s->baud;
  if (hz == 0)
    return 0;
  if (is_spi(s)) /* baud rate = f_ref / (2 (BAUD + 1)): table 25-2 */
    return 8 * 2 * ((baud & 0xff) + 1) * SAMD21_HZ / hz;
  unsigned mode = s->control_a >> 13 & 7;
  uint64_t samples = mode < 2 ? 16 : 8;
  if (mode & 1) /* fractional: baud rate = f_ref / (S (BAUD + FP / 8)) */
    return 10 * samples * ((baud & 0x1fff) * 8 + (baud >> 13)) * SAMD21_HZ /
           (hz * 8);
  /* arithmetic: baud rate = f_ref / S (1 - BAUD / 65536) */
  return 10 * samples * SAMD21_HZ * 65536 / (hz * (65536 - baud));
}

void sercom_raise(void *owner) {
  struct samd21_sercom *s = owner;
  machine_irq(s->chip->m, 9 + s->index,
              (s->flags & s->enabled_interrupts) != 0);
}

static void set_flag(struct samd21_sercom *s, uint8_t flag) {
  bool before = s->flags & flag;
  s->flags |= flag;
  sercom_raise(s);
  if (!before && (flag == FLAG_DRE || flag == FLAG_RXC))
    samd21_dmac_kick(s->chip);
}

static void clear_flag(struct samd21_sercom *s, uint8_t flag) {
  s->flags &= (uint8_t)~flag;
  sercom_raise(s);
}

bool samd21_sercom_requests(const struct samd21_sercom *s, bool transmit) {
  return !is_i2c(s) && (s->flags & (transmit ? FLAG_DRE : FLAG_RXC));
}

static void receive(struct samd21_sercom *s, uint8_t byte) {
  if (!(s->control_b & CTRLB_RXEN))
    return;
  if (s->received_count == 2) {
    s->status |= STATUS_BUFOVF;
    set_flag(s, FLAG_ERROR);
    return;
  }
  s->received[s->received_count++] = byte;
  set_flag(s, FLAG_RXC);
}

static void start_shifting(struct samd21_sercom *s, uint64_t at) {
  s->shifter = s->held;
  s->holding = false;
  s->shifting = true;
  clear_flag(s, FLAG_TXC);
  event_at(s->chip->m, &s->shifted, at + byte_ticks(s));
  set_flag(s, FLAG_DRE);
}

static void shifted(void *owner, uint64_t at) {
  struct samd21_sercom *s = owner;
  struct machine *m = s->chip->m;
  if (is_i2c(s)) {
    i2c_shifted(s);
    return;
  }
  if (!is_spi(s) && machine_hangs(m, HANG_UART))
    return;
  s->shifting = false;
  if (is_spi(s))
    receive(s, s->wired
                   ? machine_card_exchange(m, s->shifter, m->now, byte_ticks(s))
                   : 0xff);
  else if (s->serial)
    serial_put(&s->serial->from_chip, s->shifter);
  if (s->holding)
    start_shifting(s, at);
  else
    set_flag(s, FLAG_TXC);
}

/* -- the USART's receiver -- */

static bool receiving(const struct samd21_sercom *s) {
  return mode_of(s) == MODE_USART && (s->control_a & CTRLA_ENABLE) &&
         (s->control_b & CTRLB_RXEN);
}

static void next_arrival(struct samd21_sercom *s, uint64_t earliest) {
  if (!receiving(s) || s->arriving.at != NEVER ||
      !serial_waiting(&s->serial->to_chip))
    return;
  uint64_t at = s->next_arrival > earliest ? s->next_arrival : earliest;
  event_at(s->chip->m, &s->arriving, at + byte_ticks(s));
}

static void arriving(void *owner, uint64_t at) {
  struct samd21_sercom *s = owner;
  s->next_arrival = at;
  if (receiving(s))
    receive(s, serial_get(&s->serial->to_chip));
  next_arrival(s, at);
}

static void bytes_wait(void *owner) {
  struct samd21_sercom *s = owner;
  next_arrival(s, s->chip->m->now);
}

/* -- registers -- */

void sercom_stop(struct samd21_sercom *s, const char *text) {
  machine_stop(s->chip->m, RUN_FAULT, "%s: %s", s->name, text);
}

static void check_pads(struct samd21_sercom *s) {
  const struct samd21 *chip = s->chip;
  const struct samd21_pads *pads = is_i2c(s)   ? &chip->config.i2c
                                   : is_spi(s) ? &chip->config.spi
                                               : &chip->config.uart;
  if (pads->sercom != s->index)
    return;
  if (!is_i2c(s) && ((s->control_a >> 16 & 3) != pads->output_select ||
                     (s->control_a >> 20 & 3) != pads->input_select))
    sercom_stop(
        s, "its pads (DOPO/TXPO, DIPO/RXPO) are not those wired on the board");
  for (unsigned i = 0; i < pads->pin_count; i++)
    if (!samd21_pin_is(chip, pads->pins[i], pads->function))
      sercom_stop(s,
                  "PORT does not give it the pins that are wired on the board");
  if (!is_spi(s))
    return;
  if (!samd21_pin_pulled_up(chip, pads->pins[MISO]))
    sercom_stop(s, "MISO has no pull-up: it floats while no card drives it");
  for (unsigned i = 0; i < MISO; i++)
    if (byte_ticks(s) < 8 * 6 && !samd21_pin_strong(chip, pads->pins[i]))
      sercom_stop(s, "above 8 MHz, MOSI and SCK need PINCFG.DRVSTR");
}

static void enable(struct samd21_sercom *s) {
  const unsigned mode = mode_of(s);
  if (mode != MODE_USART && !is_spi(s) && !is_i2c(s)) {
    sercom_stop(s, "only the modes USART (internal clock), SPI host and I2C "
                   "host are modelled");
  } else if (sercom_core_hz(s) == 0) {
    sercom_stop(s, "its generic clock (GCLK_SERCOMx_CORE) is off");
  } else if (is_i2c(s)) {
    check_pads(s);
    i2c_enable(s);
  } else if (s->control_a & (mode == MODE_USART ? 0x0f000000u : 0x3f000000u)) {
    sercom_stop(s, "only plain frames (and SPI mode 0) are modelled");
  } else if ((mode == MODE_USART) != !!(s->control_a & CTRLA_DORD)) {
    sercom_stop(
        s, "DORD: a USART sends the lowest bit first, the card's SPI last");
  } else if (is_spi(s) && sercom_core_hz(s) / (2 * ((s->baud & 0xffu) + 1)) >
                              FASTEST_SPI_HZ) {
    sercom_stop(s, "faster than 12 MHz");
  } else {
    check_pads(s);
    set_flag(s, FLAG_DRE);
    if (s->serial)
      next_arrival(s, s->chip->m->now);
  }
}

static void disable(struct samd21_sercom *s) {
  const struct sdcard *card = s->chip->m->card;
  if (s->wired && card && card->selected)
    sercom_stop(
        s, "disabled while the card is selected: nothing drives SCK, and the "
           "card may take its change for a clock");
  s->flags = 0;
  s->status &= (uint16_t)(is_i2c(s) ? 0 : ~0);
  s->received_count = 0;
  s->holding = s->shifting = false;
  event_cancel(&s->shifted);
  event_cancel(&s->arriving);
  sercom_raise(s);
}

static void reset(struct samd21_sercom *s) {
  s->control_a = s->control_b = 0;
  s->baud = s->status = 0;
  s->enabled_interrupts = 0;
  disable(s);
}

static bool write_control_a(void *owner, uint32_t value) {
  struct samd21_sercom *s = owner;
  const uint32_t before = s->control_a;
  s->busy_until = s->chip->m->now + SYNC_TICKS;
  if (value & CTRLA_SWRST) {
    reset(s);
    return true;
  }
  if ((before & CTRLA_ENABLE) && ((value ^ before) & ~(uint32_t)CTRLA_ENABLE)) {
    sercom_stop(s, "CTRLA is enable-protected: clear ENABLE first");
    return true;
  }
  s->control_a = value;
  if ((value & CTRLA_ENABLE) && !(before & CTRLA_ENABLE))
    enable(s);
  if (!(value & CTRLA_ENABLE) && (before & CTRLA_ENABLE))
    disable(s);
  return true;
}

static bool write_control_b(void *owner, uint32_t value) {
  struct samd21_sercom *s = owner;
  if (is_i2c(s))
    return i2c_control_b(s, value, s->control_a & CTRLA_ENABLE);
  uint32_t free = CTRLB_RXEN | (is_spi(s) ? 0 : CTRLB_TXEN);
  s->busy_until = s->chip->m->now + SYNC_TICKS;
  if ((s->control_a & CTRLA_ENABLE) && ((value ^ s->control_b) & ~free)) {
    sercom_stop(s, "CTRLB is enable-protected: clear CTRLA.ENABLE first");
    return true;
  }
  s->control_b = value;
  if (!(value & CTRLB_RXEN)) {
    s->received_count = 0;
    clear_flag(s, FLAG_RXC);
  }
  if (s->serial)
    next_arrival(s, s->chip->m->now);
  return true;
}

static void baud_written(void *owner) {
  struct samd21_sercom *s = owner;
  if (s->control_a & CTRLA_ENABLE)
    sercom_stop(s, "BAUD is enable-protected: clear CTRLA.ENABLE first");
}

static uint32_t synchronising(void *owner) {
  const struct samd21_sercom *s = owner;
  return s->chip->m->now < s->busy_until ? 7 : 0;
}

/* The flags that a write can clear. */
static bool write_flags(void *owner, uint32_t value) {
  struct samd21_sercom *s = owner;
  clear_flag(s, (uint8_t)(value & (is_i2c(s) ? I2C_MB | I2C_SB | FLAG_ERROR
                                             : FLAG_TXC | FLAG_ERROR)));
  return true;
}

static bool write_status(void *owner, uint32_t value) {
  struct samd21_sercom *s = owner;
  if (is_i2c(s))
    return i2c_status(s, value);
  s->status &= (uint16_t)~value;
  return true;
}

static bool write_address(void *owner, uint32_t value) {
  struct samd21_sercom *s = owner;
  return is_i2c(s) && i2c_address(s, value);
}

bool samd21_sercom_write(void *owner, uint32_t value) {
  struct samd21_sercom *s = owner;
  if (is_i2c(s))
    return i2c_send(s, value);
  if (!(s->control_a & CTRLA_ENABLE)) {
    sercom_stop(s, "DATA written while it is disabled");
  } else if (s->holding) {
    sercom_stop(s, "DATA written while INTFLAG.DRE is clear");
  } else if (!is_spi(s) && !(s->control_b & CTRLB_TXEN)) {
    sercom_stop(s, "DATA written while the transmitter is disabled");
  } else {
    s->held = (uint8_t)value;
    s->holding = true;
    clear_flag(s, FLAG_DRE);
    if (!s->shifting)
      start_shifting(s, s->chip->m->now);
  }
  return true;
}

uint32_t samd21_sercom_read(void *owner) {
  struct samd21_sercom *s = owner;
  if (is_i2c(s))
    return i2c_receive(s);
  uint8_t value = s->received[0];
  if (s->received_count) {
    s->received[0] = s->received[1];
    s->received_count--;
  }
  clear_flag(s, FLAG_RXC);
  if (s->received_count)
    set_flag(s, FLAG_RXC);
  return value;
}

#define OF_SERCOM(member) FIELD(struct samd21_sercom, member)
static const struct reg registers[] = {
    {CTRLA, 4, BY_FUNCTION, OF_SERCOM(control_a), .set = write_control_a},
    {CTRLB, 4, BY_FUNCTION, OF_SERCOM(control_b), .set = write_control_b},
    /* SPI: 8 bits, USART: 16, I2C: 32, of which 16 have a use below 1 MHz */
    {BAUD, 1 | 2 | 4, PLAIN, OF_SERCOM(baud), .most = 0xffff,
     .after = baud_written},
    {INTENCLR, 1, CLEAR_ONES, OF_SERCOM(enabled_interrupts),
     .after = sercom_raise},
    {INTENSET, 1, SET_ONES, OF_SERCOM(enabled_interrupts),
     .after = sercom_raise},
    {INTFLAG, 1, BY_FUNCTION, OF_SERCOM(flags), .set = write_flags},
    {STATUS, 2, BY_FUNCTION, OF_SERCOM(status), .set = write_status},
    {SYNCBUSY, 4, .get = synchronising},
    {ADDR, 4, BY_FUNCTION, OF_SERCOM(address), .set = write_address},
    {DATA, 1 | 2 | 4, BY_FUNCTION, .get = samd21_sercom_read,
     .set = samd21_sercom_write},
    {0}};

static bool clocked(void *owner) {
  const struct samd21_sercom *s = owner;
  return samd21_bus_clock(s->chip, 2, APBC_SERCOM0 + s->index, s->name);
}

void samd21_sercom_create(struct samd21 *chip, unsigned index) {
  struct samd21_sercom *s = &chip->sercoms[index];
  s->chip = chip;
  s->index = index;
  snprintf(s->name, sizeof s->name, "SERCOM%u", index);
  event_add(chip->m, &s->shifted, shifted, s);
  event_add(chip->m, &s->arriving, arriving, s);
  s->wired = index == chip->config.spi.sercom;
  if (index == chip->config.uart.sercom) {
    s->serial = &chip->m->serial;
    s->serial->arrived = bytes_wait;
    s->serial->owner = s;
  }
  machine_map(chip->m,
              &(struct region){s->name, BASE + 0x400 * index, 0x400, s,
                               .registers = registers, .ready = clocked});
}
