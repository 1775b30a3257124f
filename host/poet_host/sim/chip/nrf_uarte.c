/* nrf_uarte.c - UARTE with EasyDMA (chapter UARTE): frames of eight bits
   without parity or flow control.

   State: struct nrf_uarte. `rx` and `tx` are the registers; a start latches
   them in `rx_now` and `tx_now`, so the program may set the next buffer at
   once. Bytes that arrive while no buffer is ready go to `fifo`, which holds
   four bytes. A fifth byte is lost and causes the event ERROR. */
#include "nrf52840.h"

#include <string.h>

enum {
  STARTRX = 0x000,
  STOPRX = 0x004,
  STARTTX = 0x008,
  STOPTX = 0x00c,
  RXDRDY = 2, /* events, by bit */
  ENDRX = 4,
  TXDRDY = 7,
  ENDTX = 8,
  ERROR = 9,
  RXTO = 17,
  RXSTARTED = 19,
  TXSTARTED = 20,
  TXSTOPPED = 22,
  SHORT_ENDRX_STARTRX = 1 << 5,
  SHORT_ENDRX_STOPRX = 1 << 6,
  ERRORSRC = 0x480,
  ENABLE = 0x500,
  PSEL = 0x508, /* RTS, TXD, CTS, RXD */
  BAUDRATE = 0x524,
  RXD = 0x534,
  TXD = 0x544,
  CONFIG = 0x56c,
  ENABLED = 8,
  BAUD_250000 = 0x04000000,
  OVERRUN = 1,
};

static uint64_t byte_ticks(const struct nrf_uarte *u) {
  /* BAUDRATE is the baud rate times 2^32 / 16 MHz */
  return u->baud_rate ? (40ull << 32) / u->baud_rate : 0;
}

static void check(struct nrf_uarte *u) {
  const struct nrf52840_config *config = &u->p.chip->config;
  if (u->enable != ENABLED)
    nrf_stop(&u->p, "a transfer starts while ENABLE is not 8");
  else if (u->baud_rate == 0 || u->config != 0)
    nrf_stop(&u->p, "BAUDRATE must be set, and CONFIG be plain 8-bit frames");
  else if (!u->p.chip->power.crystal_running)
    nrf_stop(&u->p, "the crystal must run: the internal oscillator is not "
                    "accurate enough for 1 Mbaud");
  else if (u->pins[1] != config->uart_tx_pin ||
           u->pins[3] != config->uart_rx_pin)
    nrf_stop(&u->p, "PSEL.TXD, PSEL.RXD are not the pins wired on the board");
}

/* -- receiving -- */

static void start_receiving(struct nrf_uarte *u);

static void store(struct nrf_uarte *u, uint8_t byte) {
  struct nrf_channel *now = &u->rx_now;
  uint8_t *to = machine_dma(u->p.chip->m, u->p.name, now->pointer++, 1);
  if (!to)
    return;
  *to = byte;
  if (++now->amount < now->count)
    return;
  u->receiving = false;
  u->rx.amount = now->amount;
  nrf_event(&u->p, ENDRX);
  if (u->p.shorts & SHORT_ENDRX_STARTRX)
    start_receiving(u);
  else if (u->p.shorts & SHORT_ENDRX_STOPRX)
    nrf_event(&u->p, RXTO);
}

static void receive(struct nrf_uarte *u, uint8_t byte) {
  if (u->receiving) {
    store(u, byte);
    nrf_event(&u->p, RXDRDY);
  } else if (u->fifo_count < sizeof u->fifo) {
    u->fifo[u->fifo_count++] = byte;
  } else {
    u->error_source |= OVERRUN;
    nrf_event(&u->p, ERROR);
  }
}

static void start_receiving(struct nrf_uarte *u) {
  check(u);
  u->rx_now = (struct nrf_channel){u->rx.pointer, u->rx.count, 0};
  u->receiving = u->rx.count != 0;
  nrf_event(&u->p, RXSTARTED);
  while (u->receiving && u->fifo_count) {
    uint8_t byte = u->fifo[0];
    for (unsigned i = 1; i < u->fifo_count; i++)
      u->fifo[i - 1] = u->fifo[i];
    u->fifo_count--;
    store(u, byte);
  }
}

static void next_arrival(struct nrf_uarte *u, uint64_t earliest) {
  struct machine *m = u->p.chip->m;
  if (u->enable != ENABLED || u->arriving.at != NEVER || !byte_ticks(u) ||
      !serial_waiting(&m->serial.to_chip))
    return;
  uint64_t at = u->next_arrival > earliest ? u->next_arrival : earliest;
  event_at(m, &u->arriving, at + byte_ticks(u));
}

static void arriving(void *owner, uint64_t at) {
  struct nrf_uarte *u = owner;
  u->next_arrival = at;
  receive(u, serial_get(&u->p.chip->m->serial.to_chip));
  next_arrival(u, at);
}

static void bytes_wait(void *owner) {
  struct nrf_uarte *u = owner;
  next_arrival(u, u->p.chip->m->now);
}

/* -- sending -- */

static void start_sending(struct nrf_uarte *u) {
  check(u);
  machine_check_stores(u->p.chip->m, u->p.name);
  u->tx_now = (struct nrf_channel){u->tx.pointer, u->tx.count, 0};
  nrf_event(&u->p, TXSTARTED);
  u->sending = u->tx.count != 0;
  if (u->sending)
    event_at(u->p.chip->m, &u->sent, u->p.chip->m->now + byte_ticks(u));
  else
    nrf_event(&u->p, ENDTX);
}

static void sent(void *owner, uint64_t at) {
  struct nrf_uarte *u = owner;
  struct machine *m = u->p.chip->m;
  struct nrf_channel *now = &u->tx_now;
  if (machine_hangs(m, HANG_UART))
    return;
  const uint8_t *from = machine_dma(m, u->p.name, now->pointer++, 1);
  if (!from)
    return;
  serial_put(&m->serial.from_chip, *from);
  nrf_event(&u->p, TXDRDY);
  if (++now->amount < now->count) {
    event_at(m, &u->sent, at + byte_ticks(u));
    return;
  }
  u->sending = false;
  u->tx.amount = now->amount;
  nrf_event(&u->p, ENDTX);
}

/* -- registers -- */

static bool task(struct nrf_peripheral *p, uint32_t offset) {
  struct nrf_uarte *u = (struct nrf_uarte *)p;
  switch (offset) {
  case STARTRX:
    start_receiving(u);
    return true;
  case STOPRX:
    u->rx.amount = u->rx_now.amount;
    if (u->receiving)
      nrf_event(p, ENDRX);
    u->receiving = false;
    nrf_event(p, RXTO);
    return true;
  case STARTTX:
    if (u->sending)
      nrf_stop(p, "STARTTX while it sends");
    start_sending(u);
    return true;
  case STOPTX:
    if (u->sending)
      nrf_stop(p, "STOPTX in the middle of a buffer is not modelled");
    nrf_event(p, TXSTOPPED);
    return true;
  default:
    return false;
  }
}

#define OF_UARTE(member) FIELD(struct nrf_uarte, member)
static const struct reg registers[] = {
    {ERRORSRC, 4, CLEAR_ONES, OF_UARTE(error_source)},
    {ENABLE, 4, PLAIN, OF_UARTE(enable), .after = bytes_wait},
    {PSEL, 4, PLAIN, OF_UARTE(pins[0]), .count = 4},
    {BAUDRATE, 4, PLAIN, OF_UARTE(baud_rate), .after = bytes_wait},
    {RXD, 4, PLAIN, OF_UARTE(rx.pointer)},
    {RXD + 4, 4, PLAIN, OF_UARTE(rx.count)},
    {RXD + 8, 4, READ_ONLY, OF_UARTE(rx.amount)},
    {TXD, 4, PLAIN, OF_UARTE(tx.pointer)},
    {TXD + 4, 4, PLAIN, OF_UARTE(tx.count)},
    {TXD + 8, 4, READ_ONLY, OF_UARTE(tx.amount)},
    {CONFIG, 4, PLAIN, OF_UARTE(config)},
    {0}};

void nrf_uarte_create(struct nrf52840 *chip) {
  struct nrf_uarte *u = &chip->uarte;
  u->p = (struct nrf_peripheral){
      .name = "UARTE0",
      .base = 0x40002000,
      .irq = 2,
      .known_events = 1 << RXDRDY | 1 << ENDRX | 1 << TXDRDY | 1 << ENDTX |
                      1 << ERROR | 1 << RXTO | 1 << RXSTARTED | 1 << TXSTARTED |
                      1 << TXSTOPPED,
      .known_shorts = SHORT_ENDRX_STARTRX | SHORT_ENDRX_STOPRX,
      .task = task,
      .registers = registers};
  u->baud_rate = BAUD_250000;
  memset(u->pins, 0xff, sizeof u->pins); /* not connected */
  event_add(chip->m, &u->sent, sent, u);
  event_add(chip->m, &u->arriving, arriving, u);
  chip->m->serial.arrived = bytes_wait;
  chip->m->serial.owner = u;
  nrf_add(chip, &u->p);
}
