/* samd21_usb_bus.c - the USB controller on the bus: packets, reset and suspend
   (32.6.2.4 to 32.6.2.9). Each endpoint has a bank that receives and a bank
   that sends, described in a table in RAM. This file answers the transactions
   of usb_bus.c.

   A SETUP packet is accepted only after the program has handled the previous
   one (RXSTP). The packet takes both banks of the endpoint back from the
   program. Transfers of several packets, which the controller could split
   itself, are not modelled. */
#include <string.h>

#include "samd21_usb.h"

enum {
  FSM_SUSPEND = 4,
  SUSPEND = 1, /* INTFLAG */
  EORST = 8,
  WAKEUP = 0x10,
  IDLE_MS = 3,
};

#define AUTOZLP 0x80000000u

/* -- banks -- */

struct bank {
  uint8_t *descriptor, *data;
  uint32_t packet_size;
  unsigned size_bytes;
};

/* Return a bank, as its descriptor in RAM describes it. If the descriptor is
   illegal, `data` is NULL and the machine has stopped. */
static struct bank find_bank(struct samd21_usb *u, unsigned n, unsigned which) {
  struct machine *m = u->chip->m;
  struct bank bank = {0};
  bank.descriptor = machine_dma(m, "the USB's table of endpoints",
                                u->descriptors + 32 * n + 16 * which, 16);
  if (!bank.descriptor)
    return bank;
  uint32_t address;
  memcpy(&address, bank.descriptor, 4);
  memcpy(&bank.packet_size, bank.descriptor + 4, 4);
  bank.size_bytes = 8u << (bank.packet_size >> 28 & 7);
  const uint32_t multi = bank.packet_size >> 14 & 0x3fff,
                 bytes = bank.packet_size & 0x3fff;
  if (bank.size_bytes > 64)
    samd21_usb_stop(
        u, "PCKSIZE.SIZE of more than 64 bytes in an endpoint's descriptor");
  else if (bank.packet_size & AUTOZLP ||
           (which == SEND ? multi != 0 || bytes > bank.size_bytes
                          : multi != 0 && multi != bank.size_bytes))
    samd21_usb_stop(u,
                    "only transfers of one packet are modelled: see PCKSIZE");
  else if (address % 4)
    samd21_usb_stop(u, "an endpoint's data must be aligned to 4 bytes");
  else
    bank.data = machine_dma(
        m, "USB", address, which == SEND ? (bytes + 3) & ~3u : bank.size_bytes);
  return bank;
}

static uint16_t crc16(const uint8_t *data, unsigned size) {
  uint16_t crc = 0xffff;
  for (unsigned i = 0; i < size * 8; i++) {
    const unsigned bit = (data[i / 8] >> i % 8 ^ crc) & 1;
    crc = (uint16_t)(crc >> 1 ^ (bit ? 0xa001 : 0));
  }
  return (uint16_t)~crc;
}

/* Store a packet. Bytes beyond the bank's size are dropped. The CRC is stored
   after the packet if there is space (32.6.2.6). */
static bool store(struct samd21_usb *u, unsigned n, const uint8_t *packet,
                  unsigned size) {
  struct bank bank = find_bank(u, n, TAKE);
  if (!bank.data)
    return false;
  uint8_t bytes[64 + 2];
  const uint16_t crc = crc16(packet, size);
  const unsigned kept = size < bank.size_bytes ? size : bank.size_bytes;
  memcpy(bytes, packet, kept);
  bytes[kept] = (uint8_t)crc;
  bytes[kept + 1] = (uint8_t)(crc >> 8);
  memcpy(bank.data, bytes,
         kept + 2 < bank.size_bytes ? kept + 2 : bank.size_bytes);
  const uint32_t packet_size = (bank.packet_size & ~0x3fffu) | kept;
  memcpy(bank.descriptor + 4, &packet_size, 4);
  return true;
}

/* -- transactions -- */

static unsigned type_of(const struct samd21_usb *u, unsigned n,
                        unsigned which) {
  return n < SAMD21_ENDPOINTS ? u->endpoints[n].config >> 4 * which & 7 : 0;
}

/* Return true if the transaction is for an open endpoint of this device. */
static bool addressed(const struct samd21_usb *u, unsigned address, unsigned n,
                      unsigned which) {
  const unsigned own = u->address & DADD_ADDEN ? u->address & 0x7fu : 0;
  return samd21_usb_attached(u) && address == own && type_of(u, n, which);
}

static void flag(struct samd21_usb *u, unsigned n, unsigned flags) {
  u->endpoints[n].flags |= (uint8_t)flags;
  samd21_usb_raise(u);
}

static enum usb_answer on_setup(void *owner, unsigned address, unsigned n,
                                const uint8_t packet[8]) {
  struct samd21_usb *u = owner;
  if (!addressed(u, address, n, TAKE) || type_of(u, n, TAKE) != TYPE_CONTROL ||
      (u->endpoints[n].flags & FLAG_RXSTP) || !store(u, n, packet, 8))
    return USB_SILENCE;
  struct samd21_endpoint *e = &u->endpoints[n];
  e->status |= STATUS_DTGL | STATUS_DTGL << SEND | STATUS_BKRDY;
  e->status &= (uint8_t)~(STATUS_BKRDY << SEND | STATUS_STALLRQ |
                          STATUS_STALLRQ << SEND);
  flag(u, n, FLAG_RXSTP);
  return USB_ACK;
}

static enum usb_answer on_out(void *owner, unsigned address, unsigned n,
                              bool toggle, const uint8_t *data, unsigned size) {
  struct samd21_usb *u = owner;
  if (!addressed(u, address, n, TAKE))
    return USB_SILENCE;
  struct samd21_endpoint *e = &u->endpoints[n];
  if (e->status & STATUS_STALLRQ) {
    flag(u, n, FLAG_STALL);
    return USB_STALL;
  }
  if (toggle != !!(e->status & STATUS_DTGL))
    return USB_ACK; /* a repetition: dropped */
  if (e->status & STATUS_BKRDY) {
    flag(u, n, FLAG_TRFAIL);
    return USB_NAK;
  }
  if (!store(u, n, data, size))
    return USB_SILENCE;
  e->status ^= STATUS_DTGL;
  e->status |= STATUS_BKRDY;
  flag(u, n, FLAG_TRCPT);
  return USB_ACK;
}

static enum usb_answer on_in(void *owner, unsigned address, unsigned n,
                             bool *toggle, uint8_t *data, unsigned *size) {
  struct samd21_usb *u = owner;
  if (!addressed(u, address, n, SEND))
    return USB_SILENCE;
  struct samd21_endpoint *e = &u->endpoints[n];
  if (e->status & STATUS_STALLRQ << SEND) {
    flag(u, n, FLAG_STALL << SEND);
    return USB_STALL;
  }
  if (!(e->status & STATUS_BKRDY << SEND)) {
    flag(u, n, FLAG_TRFAIL << SEND);
    return USB_NAK;
  }
  struct bank bank = find_bank(u, n, SEND);
  if (!bank.data)
    return USB_SILENCE;
  *size = bank.packet_size & 0x3fff;
  memcpy(data, bank.data, *size);
  *toggle = e->status & STATUS_DTGL << SEND;
  return USB_ACK;
}

/* If the program has taken the bank back since, nothing is reported. */
static void on_sent(void *owner, unsigned n) {
  struct samd21_usb *u = owner;
  struct samd21_endpoint *e = &u->endpoints[n];
  if (!(e->status & STATUS_BKRDY << SEND))
    return;
  e->status ^= STATUS_DTGL << SEND;
  e->status &= (uint8_t)~(STATUS_BKRDY << SEND);
  flag(u, n, FLAG_TRCPT << SEND);
}

/* -- reset, suspend and resume -- */

static void set_flags(struct samd21_usb *u, unsigned flags) {
  u->flags |= (uint16_t)flags;
  samd21_usb_raise(u);
}

static void wake(struct samd21_usb *u) {
  event_cancel(&u->idle);
  if (u->state == FSM_SUSPEND)
    u->flags |= WAKEUP;
  u->state = FSM_ON;
  samd21_usb_raise(u);
}

/* 32.6.2.4 */
static void on_reset(void *owner) {
  struct samd21_usb *u = owner;
  if (!samd21_usb_attached(u))
    return;
  wake(u);
  for (unsigned n = 0; n < SAMD21_ENDPOINTS; n++) {
    struct samd21_endpoint *e = &u->endpoints[n];
    if (n)
      e->config = 0;
    e->flags = e->enabled_interrupts = 0;
    e->status &= (uint8_t)~(STATUS_STALLRQ | STATUS_STALLRQ << SEND);
  }
  u->address = 0;
  set_flags(u, EORST);
}

static void on_suspend(void *owner) {
  struct samd21_usb *u = owner;
  if (!samd21_usb_attached(u))
    return;
  u->state = FSM_SUSPEND;
  set_flags(u, SUSPEND);
}

static void on_resume(void *owner) {
  struct samd21_usb *u = owner;
  if (samd21_usb_attached(u))
    wake(u);
}

/* The bus has been idle for 3 ms. */
static void idle(void *owner, uint64_t at) {
  (void)at;
  on_suspend(owner);
}

void samd21_usb_fall_idle(struct samd21_usb *u) {
  event_at(u->chip->m, &u->idle,
           u->chip->m->now + IDLE_MS * (SAMD21_HZ / 1000));
}

/* The chip cannot detect the 5 V of the cable: without a host, the bus is idle.
 */
static void on_power(void *owner, bool on) {
  struct samd21_usb *u = owner;
  if (!on && samd21_usb_attached(u) && u->state == FSM_ON)
    samd21_usb_fall_idle(u);
}

void samd21_usb_connect(struct samd21_usb *u) {
  struct machine *m = u->chip->m;
  event_add(m, &u->idle, idle, u);
  u->bus = usb_bus_create(m, &(struct usb_device){.owner = u,
                                                  .power = on_power,
                                                  .reset = on_reset,
                                                  .suspend = on_suspend,
                                                  .resume = on_resume,
                                                  .setup = on_setup,
                                                  .out = on_out,
                                                  .in = on_in,
                                                  .sent = on_sent});
}
