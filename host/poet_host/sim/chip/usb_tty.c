/* usb_tty.c - the serial port of an enumerated device: the actions of the
   driver cdc_acm, and of a program that uses /dev/ttyACM0.

   State, in struct usb_host: what the program wants (`wants_open`,
   `wants_baud`) and what was sent to the device (`open`, `baud`). usb_tty_next
   sends the next request that is needed. When the answer to this request
   arrives, usb_tty_next is called again. `busy` is set while a request is
   pending. */
#include <string.h>

#include "usb_host.h"

enum {
  IDLE_US = 3 * 1000,
  RESUME_US = 20 * 1000,
  SET_OF_ENDPOINT = 0x02, /* bmRequestType */
  SET_OF_CLASS = 0x21,
  CLEAR_FEATURE = 1, /* bRequest */
  SET_CONTROL_LINE_STATE = 0x22,
  DTR_RTS = 3,
};

/* -- the port -- */

static void request_answered(struct usb_bus *bus, int result) {
  bus->host->busy = false;
  usb_host_note(bus, result);
  usb_tty_next(bus);
}

static void foreign_answered(struct usb_bus *bus, int result) {
  struct usb_host *h = bus->host;
  h->asks = false;
  h->answered = result;
  memcpy(h->asked_data, bus->control.data, CONTROL_BYTES);
  request_answered(bus, result);
}

static void halt_cleared(struct usb_bus *bus, int result) {
  struct usb_host *h = bus->host;
  usb_bus_open(bus, h->clearing, h->endpoints[h->clearing]);
  usb_bus_activate(bus, h->clearing, h->open);
  h->stalled &= ~(1u << h->clearing);
  request_answered(bus, result);
}

static void opened(struct usb_bus *bus, int result) {
  bus->host->open = true;
  bus->host->urb_bytes = 0;
  for (unsigned i = PIPE_NOTICE; i < PIPES; i++)
    usb_bus_activate(bus, (enum pipe_name)i, true);
  request_answered(bus, result);
}

static void closed(struct usb_bus *bus, int result) {
  bus->host->open = false;
  for (unsigned i = PIPE_NOTICE; i < PIPES; i++)
    usb_bus_activate(bus, (enum pipe_name)i, false);
  request_answered(bus, result);
}

static void set_lines(struct usb_bus *bus, unsigned lines,
                      void (*then)(struct usb_bus *bus, int result)) {
  usb_host_ask(bus, SET_OF_CLASS, SET_CONTROL_LINE_STATE, lines,
               bus->host->interface, 0, NULL, then);
}

void usb_tty_next(struct usb_bus *bus) {
  struct usb_host *h = bus->host;
  if (h->busy || h->state != USB_READY)
    return;
  if (h->asks) {
    usb_host_send(bus, h->asked, h->asked_data, foreign_answered);
  } else if (h->stalled) {
    h->clearing = h->stalled & 1u << PIPE_IN ? PIPE_IN : PIPE_OUT;
    usb_host_ask(bus, SET_OF_ENDPOINT, CLEAR_FEATURE, 0,
                 h->endpoints[h->clearing], 0, NULL, halt_cleared);
  } else if (h->wants_open && !h->open) {
    set_lines(bus, DTR_RTS, opened);
  } else if (h->open && h->baud != h->wants_baud) {
    h->baud = h->wants_baud;
    usb_host_set_line_coding(bus, h->baud, request_answered);
  } else if (!h->wants_open && h->open && !serial_waiting(&h->to_device) &&
             !bus->out_size) {
    set_lines(bus, 0, closed);
  }
}

void usb_tty_received(struct usb_bus *bus, enum pipe_name name,
                      const uint8_t *data, unsigned size) {
  struct usb_host *h = bus->host;
  if (name != PIPE_IN)
    return;
  memcpy(h->urb + h->urb_bytes, data, size);
  h->urb_bytes += size;
  if (size == HOST_PACKET && h->urb_bytes < URB_BYTES)
    return;
  serial_give(&h->from_device, h->urb, h->urb_bytes);
  h->urb_bytes = 0;
  if (serial_waiting(&h->from_device) > SERIAL_RING - URB_BYTES)
    usb_bus_activate(bus, PIPE_IN, false); /* the ring is full: no reader */
}

unsigned usb_tty_next_out(struct usb_bus *bus, uint8_t *data) {
  return serial_take(&bus->host->to_device, data, HOST_PACKET);
}

void usb_tty_stalled(struct usb_bus *bus, enum pipe_name name) {
  if (name != PIPE_NOTICE) {
    bus->host->stalled |= 1u << name;
    usb_tty_next(bus);
  }
}

/* -- for the outside -- */

void machine_usb_open(struct machine *m, bool open, uint32_t baud) {
  m->usb->host->wants_open = open;
  m->usb->host->wants_baud = baud;
  usb_tty_next(m->usb);
}

bool machine_usb_is_open(const struct machine *m) {
  return machine_usb_state(m) == USB_READY && m->usb->host->open &&
         !m->usb->host->busy;
}

uint32_t machine_usb_give(struct machine *m, const uint8_t *data,
                          uint32_t size_bytes) {
  struct usb_host *h = m->usb->host;
  const uint32_t given = serial_give(&h->to_device, data, size_bytes);
  if (h->open)
    usb_bus_activate(m->usb, PIPE_OUT, true);
  return given;
}

uint32_t machine_usb_take(struct machine *m, uint8_t *data,
                          uint32_t size_bytes) {
  struct usb_host *h = m->usb->host;
  const uint32_t taken = serial_take(&h->from_device, data, size_bytes);
  if (taken && h->open && !(h->stalled & 1u << PIPE_IN))
    usb_bus_activate(m->usb, PIPE_IN, true);
  return taken;
}

uint32_t machine_usb_waiting(const struct machine *m) {
  return m->usb ? serial_waiting(&m->usb->host->from_device) : 0;
}

static void suspended(struct usb_bus *bus) {
  bus->device.suspend(bus->device.owner);
}

static void resumed(struct usb_bus *bus) {
  bus->device.resume(bus->device.owner);
  usb_bus_quiet(bus, false);
}

void machine_usb_suspend(struct machine *m, bool suspend) {
  if (suspend) {
    usb_bus_quiet(m->usb, true);
    usb_host_wait(m->usb, IDLE_US, suspended);
  } else {
    usb_host_wait(m->usb, RESUME_US, resumed);
  }
}

void machine_usb_ask(struct machine *m, const uint8_t setup[8],
                     const uint8_t *data, uint32_t size_bytes) {
  struct usb_host *h = m->usb->host;
  memcpy(h->asked, setup, 8);
  memset(h->asked_data, 0, CONTROL_BYTES);
  memcpy(h->asked_data, data,
         size_bytes < CONTROL_BYTES ? size_bytes : CONTROL_BYTES);
  h->asks = true;
  h->answered = CONTROL_PENDING;
  usb_tty_next(m->usb);
}

void machine_usb_interject(struct machine *m, const uint8_t setup[8],
                           const uint8_t *data, uint32_t size_bytes) {
  struct usb_host *h = m->usb->host;
  if (h->state == USB_READY)
    h->busy = false; /* the pending transfer's callback is not called */
  machine_usb_ask(m, setup, data, size_bytes);
  usb_bus_hurry(m->usb);
}

int machine_usb_answer(const struct machine *m, uint8_t data[512]) {
  memcpy(data, m->usb->host->asked_data, CONTROL_BYTES);
  return m->usb->host->answered;
}
