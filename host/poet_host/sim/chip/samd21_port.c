/* samd21_port.c - PORT (section 23), reached by the bridge and by the IOBUS.
   State: the registers of both groups. The outputs are the card's select pin
   and the LED; the input is the button. Peripherals read the multiplexer to
   check their pins (samd21_pin_is). */
#include "samd21.h"
#include "scene.h"

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
  INEN = 2,
  PULLEN = 4,
  DRVSTR = 0x40,
};

static void drive(void *owner) {
  struct samd21 *chip = ((struct samd21_port *)owner)->chip;
  const unsigned pin = chip->config.card_select_pin;
  const struct samd21_port *port = &chip->ports[pin / 32];
  const bool low = port->dir & ~port->out & 1u << pin % 32;
  const unsigned other = chip->config.other_select_pin,
                 led = chip->config.led_pin;
  if (led && chip->m->scene)
    scene_led(chip->m->scene, chip->ports[led / 32].dir &
                                  chip->ports[led / 32].out & 1u << led % 32);
  port = &chip->ports[other / 32];
  if (low && other && !(port->dir & port->out & 1u << other % 32))
    machine_stop(
        chip->m, RUN_FAULT,
        "PORT: the card is selected while P%c%u, the select of another "
        "device on its bus, is not driven high",
        'A' + (int)(other / 32), other % 32);
  machine_card_select(chip->m, low);
}

bool samd21_pin_pulled_up(const struct samd21 *chip, unsigned pin) {
  const struct samd21_port *port = &chip->ports[pin / 32];
  return (port->config[pin % 32] & PULLEN) && (port->out >> pin % 32 & 1);
}

bool samd21_pin_strong(const struct samd21 *chip, unsigned pin) {
  return chip->ports[pin / 32].config[pin % 32] & DRVSTR;
}

bool samd21_pin_is(const struct samd21 *chip, unsigned pin, unsigned function) {
  const struct samd21_port *port = &chip->ports[pin / 32];
  const uint8_t mux = port->mux[pin % 32 / 2];
  return (port->config[pin % 32] & PMUXEN) &&
         (pin % 2 ? mux >> 4 : mux & 15) == function;
}

/* The level of the button's pin. Its input buffer may be off (23.6.3). */
static bool button_high(struct samd21 *chip, unsigned pin) {
  if (!(chip->ports[pin / 32].config[pin % 32] & INEN) ||
      (chip->m->scene && scene_pressed(chip->m->scene)))
    return false;
  if (!samd21_pin_pulled_up(chip, pin))
    machine_stop(chip->m, RUN_FAULT,
                 "PORT: IN is read while the button's pin floats: it needs its "
                 "pull-up");
  return true;
}

static uint32_t input(void *owner) {
  const struct samd21_port *port = owner;
  struct samd21 *chip = port->chip;
  const unsigned button = chip->config.button_pin;
  const uint32_t driven = port->out & port->dir, bit = 1u << button % 32;
  if (!button || port != &chip->ports[button / 32] || (port->dir & bit))
    return driven;
  return driven | (button_high(chip, button) ? bit : 0);
}

/* The registers DIR and OUT. Each also has registers CLR, SET and TGL (23.8.1
   to 23.8.8). */
#define OF_PORT(member) FIELD(struct samd21_port, member)
static const struct reg group_registers[] = {
    {DIR, 4, PLAIN, OF_PORT(dir), .after = drive},
    {DIR + 4, 4, CLEAR_ONES, OF_PORT(dir), .after = drive},
    {DIR + 8, 4, SET_ONES, OF_PORT(dir), .after = drive},
    {DIR + 12, 4, FLIP_ONES, OF_PORT(dir), .after = drive},
    {OUT, 4, PLAIN, OF_PORT(out), .after = drive},
    {OUT + 4, 4, CLEAR_ONES, OF_PORT(out), .after = drive},
    {OUT + 8, 4, SET_ONES, OF_PORT(out), .after = drive},
    {OUT + 12, 4, FLIP_ONES, OF_PORT(out), .after = drive},
    {IN, 4, .get = input},
    {PMUX, 1, PLAIN, OF_PORT(mux[0]), .count = 16},
    {PINCFG, 1, PLAIN, OF_PORT(config[0]), .count = 32},
    {0}};

static void *group(void *owner, unsigned number) {
  struct samd21 *chip = owner;
  return &chip->ports[number];
}

static const struct reg registers[] = {
    {0, .count = 2, .stride = GROUP, .part = group, .table = group_registers},
    {0}};

void samd21_port_create(struct samd21 *chip) {
  chip->ports[0].chip = chip->ports[1].chip = chip;
  machine_map(chip->m, &(struct region){"PORT", BASE, 0x400, chip,
                                        .registers = registers});
  machine_map(chip->m, &(struct region){"PORT (IOBUS)", IOBUS, 0x400, chip,
                                        .registers = registers});
}
