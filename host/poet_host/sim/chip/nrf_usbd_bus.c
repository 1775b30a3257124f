/* nrf_usbd_bus.c - USBD (chapter of this name) on the bus: control transfers,
   and bulk and interrupt transactions, which are handled alike. The file
   answers the transactions of usb_bus.c from the packets in struct nrf_pipe. A
   SETUP packet is always accepted and replaces the previous control transfer.
   Assumed: it also ends a move of EasyDMA, and drops that packet. SET_ADDRESS
   takes effect after its status stage. */
#include "nrf_usbd.h"

#include <string.h>

enum { SET_ADDRESS = 5, FROM_HOST = 0, TO_HOST = 0x80 };

void nrf_usbd_forget(struct nrf_usbd *u) {
  u->address = u->new_address = 0;
  u->in_enabled = u->out_enabled = 1;
  u->status_allowed = u->control_stalled = false;
  for (unsigned n = 0; n < NRF_USB_ENDPOINTS; n++) {
    struct nrf_pipe *in = &u->in[n], *out = &u->out[n];
    in->toggle = in->halted = out->toggle = out->halted = false;
    out->taken = false; /* `full` stays set, so buffered packets are kept */
  }
}

static bool answers(const struct nrf_usbd *u, unsigned address) {
  return u->ready && u->pull_up && u->p.chip->power.crystal_running &&
         address == u->address;
}

/* -- the control endpoint -- */

static bool wants_data(const struct nrf_usbd *u, unsigned direction) {
  return (u->setup[0] & TO_HOST) == direction && (u->setup[6] || u->setup[7]);
}

static bool sets_address(const struct nrf_usbd *u) {
  return u->setup[0] == 0 && u->setup[1] == SET_ADDRESS;
}

static enum usb_answer setup(void *owner, unsigned address, unsigned endpoint,
                             const uint8_t packet[8]) {
  struct nrf_usbd *u = owner;
  if (!answers(u, address) || endpoint)
    return USB_SILENCE;
  nrf_usbd_finish_moving(u);
  memcpy(u->setup, packet, sizeof u->setup);
  u->in[0].full = u->out[0].taken = false;
  u->in[0].toggle = u->out[0].toggle = true;
  u->control_stalled = false;
  u->status_allowed = sets_address(u); /* the controller answers by itself */
  u->new_address = packet[2] & 0x7fu;
  nrf_event(&u->p, USBD_EP0SETUP);
  return USB_ACK;
}

/* The status stage (an empty packet in either direction) is over. */
static void end_status(struct nrf_usbd *u) {
  u->status_allowed = false;
  if (sets_address(u))
    u->address = u->new_address;
}

/* -- packets -- */

/* Store a packet from the host, and set `came` unless the packet is a
   repetition. */
static enum usb_answer receive(struct nrf_pipe *pipe, bool toggle,
                               const uint8_t *data, unsigned size, bool *came) {
  *came = false;
  if (!pipe->taken)
    return USB_NAK;
  if (toggle == pipe->toggle) {
    memcpy(pipe->packet, data, size);
    pipe->size = size;
    pipe->toggle = !pipe->toggle;
    pipe->taken = false;
    pipe->full = *came = true;
  }
  return USB_ACK;
}

static enum usb_answer in(void *owner, unsigned address, unsigned endpoint,
                          bool *toggle, uint8_t *data, unsigned *size) {
  struct nrf_usbd *u = owner;
  *toggle = true;
  *size = 0;
  if (!answers(u, address) || endpoint >= NRF_USB_ENDPOINTS ||
      !(u->in_enabled >> endpoint & 1))
    return USB_SILENCE;
  if (endpoint ? u->in[endpoint].halted : u->control_stalled)
    return USB_STALL;
  if (!endpoint && !wants_data(u, TO_HOST))
    return u->status_allowed ? USB_ACK : USB_NAK;
  const struct nrf_pipe *pipe = &u->in[endpoint];
  if (!pipe->full)
    return USB_NAK;
  memcpy(data, pipe->packet, pipe->size);
  *size = pipe->size;
  *toggle = pipe->toggle;
  return USB_ACK;
}

/* If the program has dropped the packet since, nothing is reported. */
static void sent(void *owner, unsigned endpoint) {
  struct nrf_usbd *u = owner;
  struct nrf_pipe *pipe = &u->in[endpoint];
  if (!endpoint && !wants_data(u, TO_HOST)) {
    end_status(u);
  } else if (pipe->full) {
    pipe->toggle = !pipe->toggle;
    pipe->full = false;
    if (endpoint)
      u->transferred |= 1u << endpoint;
    nrf_event(&u->p, endpoint ? USBD_EPDATA : USBD_EP0DATADONE);
  }
}

static enum usb_answer out(void *owner, unsigned address, unsigned endpoint,
                           bool toggle, const uint8_t *data, unsigned size) {
  struct nrf_usbd *u = owner;
  bool came;
  if (!answers(u, address) || endpoint >= NRF_USB_ENDPOINTS ||
      !(u->out_enabled >> endpoint & 1) || size > NRF_USB_PACKET)
    return USB_SILENCE;
  if (endpoint ? u->out[endpoint].halted : u->control_stalled)
    return USB_STALL;
  if (!endpoint && !wants_data(u, FROM_HOST)) {
    if (!u->status_allowed)
      return USB_NAK;
    end_status(u);
    return USB_ACK;
  }
  enum usb_answer answer =
      receive(&u->out[endpoint], toggle, data, size, &came);
  if (came && endpoint)
    u->transferred |= 1u << (16 + endpoint);
  if (came)
    nrf_event(&u->p, endpoint ? USBD_EPDATA : USBD_EP0DATADONE);
  return answer;
}

/* -- power, reset and suspend -- */

static void power(void *owner, bool on) {
  struct nrf_usbd *u = owner;
  nrf_power_vbus(u->p.chip, on);
}

static void reset(void *owner) {
  struct nrf_usbd *u = owner;
  if (!u->ready)
    return;
  nrf_usbd_finish_moving(u);
  nrf_usbd_forget(u);
  nrf_event(&u->p, USBD_USBRESET);
}

static void suspend(void *owner) {
  struct nrf_usbd *u = owner;
  nrf_usbd_check_suspend(u);
  nrf_usbd_cause(u, USBD_CAUSE_SUSPEND);
}

static void resume(void *owner) {
  nrf_usbd_cause(owner, USBD_CAUSE_RESUME);
}

void nrf_usbd_bus_create(struct nrf_usbd *u) {
  nrf_usbd_forget(u);
  u->bus = usb_bus_create(u->p.chip->m, &(struct usb_device){.owner = u,
                                                             .power = power,
                                                             .reset = reset,
                                                             .suspend = suspend,
                                                             .resume = resume,
                                                             .setup = setup,
                                                             .out = out,
                                                             .in = in,
                                                             .sent = sent});
}
