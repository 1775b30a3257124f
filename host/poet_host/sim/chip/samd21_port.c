/* samd21_port.c - PORT (section 23), on the bridge and on the IOBUS. State: the
   registers of both groups. Only the card's select pin has an effect. The
   multiplexer is read by peripherals that check their pins (samd21_pin_is). */
#include "samd21.h"

enum {
  BASE = 0x41004400,
  IOBUS = 0x60000000,
  GROUP = 0x80,
  DIR = 0x00,
  OUT = 0x10,
  IN = 0x20,
  PMUX = 0x30,
  PINCFG = 0x40,
  PMUXEN = 1,
};

static void drive(struct samd21_port *port) {
  struct samd21 *chip = port->chip;
  unsigned pin = chip->config.card_select_pin;
  uint32_t bit = 1u << pin % 32;
  bool low = (port->dir[pin / 32] & bit) && !(port->out[pin / 32] & bit);
  if (chip->card && low != chip->card->selected)
    sdcard_select(chip->card, low, machine_nanoseconds(chip->m));
}

bool samd21_pin_is(const struct samd21 *chip, unsigned pin, unsigned function) {
  const struct samd21_port *port = &chip->port;
  uint8_t mux = port->mux[pin / 32][pin % 32 / 2];
  return (port->config[pin / 32][pin % 32] & PMUXEN) &&
         (pin % 2 ? mux >> 4 : mux & 15) == function;
}

static bool port_read(void *owner, uint32_t offset, unsigned size,
                      uint32_t *value) {
  struct samd21_port *port = owner;
  uint32_t group = offset / GROUP, at = offset % GROUP;
  if (group > 1)
    return false;
  if (at >= PMUX && at < PMUX + 16) {
    *value = port->mux[group][at - PMUX];
    return size == 1;
  }
  if (at >= PINCFG && at < PINCFG + 32) {
    *value = port->config[group][at - PINCFG];
    return size == 1;
  }
  switch (at) {
  case DIR:
    *value = port->dir[group];
    return size == 4;
  case OUT:
    *value = port->out[group];
    return size == 4;
  case IN:
    *value = port->out[group] & port->dir[group];
    return size == 4;
  default:
    return false;
  }
}

/* The register itself, then its CLR, SET and TGL (23.8.1 to 23.8.8). */
static uint32_t changed(uint32_t before, uint32_t how, uint32_t value) {
  switch (how) {
  case 0:
    return value;
  case 4:
    return before & ~value;
  case 8:
    return before | value;
  default:
    return before ^ value;
  }
}

static bool port_write(void *owner, uint32_t offset, unsigned size,
                       uint32_t value) {
  struct samd21_port *port = owner;
  uint32_t group = offset / GROUP, at = offset % GROUP;
  if (group > 1)
    return false;
  if (at >= PMUX && at < PMUX + 16) {
    port->mux[group][at - PMUX] = (uint8_t)value;
    return size == 1;
  }
  if (at >= PINCFG && at < PINCFG + 32) {
    port->config[group][at - PINCFG] = (uint8_t)value;
    return size == 1;
  }
  if (size != 4 || at >= IN || at % 4)
    return false;
  uint32_t *registers = at < OUT ? port->dir : port->out;
  registers[group] = changed(registers[group], at % 16, value);
  drive(port);
  return true;
}

void samd21_port_create(struct samd21 *chip) {
  struct samd21_port *port = &chip->port;
  port->chip = chip;
  machine_map(chip->m, &(struct region){"PORT", BASE, 0x400, port, port_read,
                                        port_write});
  machine_map(chip->m, &(struct region){"PORT (IOBUS)", IOBUS, 0x400, port,
                                        port_read, port_write});
}
