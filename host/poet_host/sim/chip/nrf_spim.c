/* nrf_spim.c - SPIM with EasyDMA (chapter SPIM): mode 0, highest bit first.

   State: struct nrf_spim. `rx` and `tx` are the registers; START latches them
   in `rx_now` and `tx_now`. All bytes are exchanged at the end of the transfer,
   each with the time at which it was on the wire.

   SPIM3 runs at 16 and 32 MHz. It may send wrong bytes if another master uses
   the RAM block of its buffer (anomaly 198), so the model stops at any access
   to that block during a transfer. */
#include "nrf52840.h"

#include <string.h>

enum {
  START = 0x010,
  STOP = 0x014,
  STOPPED = 1, /* events, by bit */
  ENDRX = 4,
  END = 6,
  ENDTX = 8,
  STARTED = 19,
  ENABLE = 0x500,
  PSEL = 0x508, /* SCK, MOSI, MISO, CSN */
  FREQUENCY = 0x524,
  RXD = 0x534,
  TXD = 0x544,
  CONFIG = 0x554,
  ORC = 0x5c0,
  ENABLED = 7,
  KHZ_250 = 0x04000000,
  OUTPUT = 1, /* in PIN_CNF */
  INPUT_OFF = 2,
  PULL_UP = 3 << 2,
  DRIVE = 7 << 8,
  HIGH_DRIVE = 3 << 8,
  RAM_START = 0x20000000,
  SMALL_BLOCK = 0x2000, /* size of RAM0 to RAM7 ("Memory") */
  BIG_BLOCK = 0x20010000,
};

static uint64_t byte_ticks(const struct nrf_spim *s) {
  const uint32_t frequency = s->frequency;
  if (frequency == 0x0a000000)
    return s->fast ? 8 * 4 : 0;
  if (frequency == 0x14000000)
    return s->fast ? 8 * 2 : 0;
  /* other register values are powers of two, for 125 kHz to 8 MHz */
  const bool one_bit = frequency && !(frequency & (frequency - 1));
  return one_bit && frequency >= 0x02000000 ? 8 * 512 / (frequency >> 25) : 0;
}

static uint32_t longest(const struct nrf_spim *s) {
  return s->rx_now.count > s->tx_now.count ? s->rx_now.count : s->tx_now.count;
}

/* Anomaly 198: guard the RAM blocks of the bytes being sent. */
static void guard_blocks(struct nrf_spim *s, bool on) {
  struct machine *m = s->p.chip->m;
  uint32_t from = s->tx_now.pointer, to = from + s->tx_now.count;
  if (!s->fast || s->tx_now.count == 0 || s->tx_now.pointer < RAM_START)
    return;
  from = from >= BIG_BLOCK ? BIG_BLOCK : from & ~(SMALL_BLOCK - 1u);
  to = to > BIG_BLOCK ? m->ram_base + m->ram_bytes
                      : (to + SMALL_BLOCK - 1) & ~(SMALL_BLOCK - 1u);
  if (on)
    machine_guard(m, from, to,
                  "it lies in the RAM block from which SPIM3 sends at the "
                  "moment, and what is sent may be corrupted (anomaly 198)");
  else
    machine_guard(m, 0, 0, NULL);
}

static bool buffers_exist(struct nrf_spim *s) {
  struct machine *m = s->p.chip->m;
  return machine_dma(m, s->p.name, s->rx_now.pointer, s->rx_now.count) &&
         machine_dma(m, s->p.name, s->tx_now.pointer, s->tx_now.count);
}

/* Return true if the GPIO is set up as the chapter SPIM says. SCK's input
   buffer must be connected. Above 8 MHz, the outputs need a high drive. Without
   a pull-up, MISO floats while no card drives it. */
static bool pins_are_set(const struct nrf_spim *s) {
  const uint32_t sck = nrf_gpio_config(s->p.chip, s->pins[0]),
                 mosi = nrf_gpio_config(s->p.chip, s->pins[1]),
                 miso = nrf_gpio_config(s->p.chip, s->pins[2]);
  const uint32_t drive = byte_ticks(s) < 8 * 8 ? HIGH_DRIVE : 0;
  return (sck & (OUTPUT | INPUT_OFF)) == OUTPUT && (mosi & OUTPUT) &&
         (!drive || ((sck & DRIVE) == drive && (mosi & DRIVE) == drive)) &&
         (miso & (OUTPUT | INPUT_OFF | PULL_UP)) == PULL_UP;
}

static void start(struct nrf_spim *s) {
  struct machine *m = s->p.chip->m;
  const struct nrf52840_config *config = &s->p.chip->config;
  s->rx_now = (struct nrf_channel){s->rx.pointer, s->rx.count, 0};
  s->tx_now = (struct nrf_channel){s->tx.pointer, s->tx.count, 0};
  if (s->rx_now.count == 0)
    s->rx_now.pointer = m->ram_base;
  if (s->tx_now.count == 0)
    s->tx_now.pointer = m->ram_base;
  if (s->enable != ENABLED || s->running)
    nrf_stop(&s->p, "START while it is disabled or runs");
  else if (byte_ticks(s) == 0 || s->config != 0)
    nrf_stop(&s->p, "FREQUENCY must be one that the instance has, and CONFIG "
                    "mode 0 with the highest bit first");
  else if (s->pins[0] != config->spi_sck_pin ||
           s->pins[1] != config->spi_mosi_pin ||
           s->pins[2] != config->spi_miso_pin)
    nrf_stop(&s->p, "PSEL is not the pins wired on the board");
  else if (!pins_are_set(s))
    nrf_stop(&s->p, "PIN_CNF: direction, drive or pull-up of its pins is not "
                    "what the bus needs");
  else if (buffers_exist(s)) {
    machine_check_stores(m, s->p.name);
    s->running = true;
    s->started_at = m->now;
    guard_blocks(s, true);
    event_at(m, &s->end, m->now + longest(s) * byte_ticks(s));
    nrf_event(&s->p, STARTED);
  }
}

/* Exchange the first `count` bytes, each at its time on the wire. */
static void transfer(struct nrf_spim *s, uint32_t count) {
  struct machine *m = s->p.chip->m;
  const uint64_t each = byte_ticks(s);
  uint8_t *to = m->ram + (s->rx_now.pointer - m->ram_base);
  const uint8_t *from = m->ram + (s->tx_now.pointer - m->ram_base);
  for (uint32_t i = 0; i < count; i++) {
    uint64_t at = s->started_at + (i + 1) * each;
    uint8_t out = i < s->tx_now.count ? from[i] : (uint8_t)s->orc;
    uint8_t in = machine_card_exchange(m, out, at, each);
    if (i < s->rx_now.count)
      to[i] = in;
    if (m->card && sdcard_power_lost(m->card))
      return;
  }
}

static void finish(struct nrf_spim *s, uint32_t count) {
  guard_blocks(s, false);
  transfer(s, count);
  s->running = false;
  s->rx.amount = count < s->rx_now.count ? count : s->rx_now.count;
  s->tx.amount = count < s->tx_now.count ? count : s->tx_now.count;
}

static void end(void *owner, uint64_t at) {
  (void)at;
  struct nrf_spim *s = owner;
  if (machine_hangs(s->p.chip->m, HANG_DMA))
    return;
  finish(s, longest(s));
  nrf_event(&s->p, ENDRX);
  nrf_event(&s->p, ENDTX);
  nrf_event(&s->p, END);
}

static bool task(struct nrf_peripheral *p, uint32_t offset) {
  struct nrf_spim *s = (struct nrf_spim *)p;
  if (offset == START) {
    start(s);
  } else if (offset == STOP) {
    if (s->running) {
      event_cancel(&s->end);
      finish(s, (uint32_t)((p->chip->m->now - s->started_at) / byte_ticks(s)));
    }
    nrf_event(p, STOPPED);
  }
  return offset == START || offset == STOP;
}

#define OF_SPIM(member) FIELD(struct nrf_spim, member)
static const struct reg registers[] = {
    {ENABLE, 4, PLAIN, OF_SPIM(enable)},
    {PSEL, 4, PLAIN, OF_SPIM(pins[0]), .count = 4},
    {FREQUENCY, 4, PLAIN, OF_SPIM(frequency)},
    {RXD, 4, PLAIN, OF_SPIM(rx.pointer)},
    {RXD + 4, 4, PLAIN, OF_SPIM(rx.count), .most = 0xffff},
    {RXD + 8, 4, READ_ONLY, OF_SPIM(rx.amount)},
    {TXD, 4, PLAIN, OF_SPIM(tx.pointer)},
    {TXD + 4, 4, PLAIN, OF_SPIM(tx.count), .most = 0xffff},
    {TXD + 8, 4, READ_ONLY, OF_SPIM(tx.amount)},
    {CONFIG, 4, PLAIN, OF_SPIM(config)},
    {ORC, 4, PLAIN, OF_SPIM(orc)},
    {0}};

void nrf_spim_create(struct nrf52840 *chip, unsigned position) {
  static const struct nrf_peripheral instances[NRF_SPIMS] = {
      {.name = "SPIM2", .base = 0x40023000, .irq = 35},
      {.name = "SPIM3", .base = 0x4002f000, .irq = 47}};
  struct nrf_spim *s = &chip->spims[position];
  s->p = instances[position];
  s->fast = position == 1;
  s->p.known_events =
      1 << STOPPED | 1 << ENDRX | 1 << END | 1 << ENDTX | 1 << STARTED;
  s->p.task = task;
  s->p.registers = registers;
  s->frequency = KHZ_250;
  memset(s->pins, 0xff, sizeof s->pins); /* not connected */
  event_add(chip->m, &s->end, end, s);
  nrf_add(chip, &s->p);
}
