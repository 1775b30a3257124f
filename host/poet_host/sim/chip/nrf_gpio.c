/* nrf_gpio.c - GPIO (chapter of that name). Only the card's select pin has an
   effect. State: struct nrf_gpio. */
#include "nrf52840.h"

enum {
  GPIO_BASE = 0x50000000,
  PORT_STRIDE = 0x300,
  OUT = 0x504,
  OUTSET = 0x508,
  OUTCLR = 0x50c,
  IN = 0x510,
  DIR = 0x514,
  DIRSET = 0x518,
  DIRCLR = 0x51c,
  PIN_CNF = 0x700,
  INPUT_DISCONNECTED = 2,
};

static void drive(struct nrf_gpio *g) {
  struct nrf52840 *chip = g->chip;
  const unsigned pin = chip->config.card_select_pin;
  const struct nrf_port *port = &g->ports[pin / 32];
  const bool low = port->dir & ~port->out & 1u << pin % 32;
  machine_card_select(chip->m, low);
}

uint32_t nrf_gpio_config(const struct nrf52840 *chip, unsigned pin) {
  return chip->gpio.ports[pin / 32].config[pin % 32];
}

static uint32_t input(void *owner) {
  const struct nrf_port *port = owner;
  return port->out & port->dir;
}

#define OF_PORT(member) FIELD(struct nrf_port, member)
static const struct reg port_registers[] = {
    {OUT, 4, PLAIN, OF_PORT(out)},
    {OUTSET, 4, SET_ONES, OF_PORT(out)},
    {OUTCLR, 4, CLEAR_ONES, OF_PORT(out)},
    {IN, 4, .get = input},
    {DIR, 4, PLAIN, OF_PORT(dir)},
    {DIRSET, 4, SET_ONES, OF_PORT(dir)},
    {DIRCLR, 4, CLEAR_ONES, OF_PORT(dir)},
    {PIN_CNF, 4, PLAIN, OF_PORT(config[0]), .count = 32},
    {0}};

static bool gpio_read(void *owner, uint32_t offset, unsigned size,
                      uint32_t *value) {
  struct nrf_gpio *g = owner;
  const unsigned port = offset >= PIN_CNF + 128;
  return register_read(port_registers, &g->ports[port],
                       offset - port * PORT_STRIDE, size, value);
}

static bool gpio_write(void *owner, uint32_t offset, unsigned size,
                       uint32_t value) {
  struct nrf_gpio *g = owner;
  const unsigned second = offset >= PIN_CNF + 128;
  const uint32_t at = offset - second * PORT_STRIDE;
  struct nrf_port *port = &g->ports[second];
  if (!register_write(port_registers, port, at, size, value))
    return false;
  if (at >= PIN_CNF) { /* bit 0 is the pin's bit in DIR */
    const unsigned pin = (at - PIN_CNF) / 4;
    port->dir = (port->dir & ~(1u << pin)) | (value & 1u) << pin;
  }
  drive(g);
  return true;
}

void nrf_gpio_create(struct nrf52840 *chip) {
  chip->gpio.chip = chip;
  for (unsigned i = 0; i < 64; i++)
    chip->gpio.ports[i / 32].config[i % 32] = INPUT_DISCONNECTED;
  machine_map(chip->m,
              &(struct region){"GPIO", GPIO_BASE, 0x1000, &chip->gpio,
                               .read = gpio_read, .write = gpio_write});
}
