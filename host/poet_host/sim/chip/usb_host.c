/* usb_host.c - the actions of a Linux host when a serial port of the class
   CDC-ACM is plugged in. Its requests have the order that usbmon shows for
   Linux 6.1.

   State: struct usb_host. Enumeration is a sequence of steps; each sends one
   request or waits, and step_answered starts the next. After an error,
   enumeration begins again with a reset, at most ATTEMPTS times in all. After
   the last step the port belongs to usb_tty.c. Every request is kept in `log`,
   for tests. */
#include "usb_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  DEBOUNCE_US = 100 * 1000,
  RESET_US = 50 * 1000,
  RECOVERY_US = 10 * 1000,
  ATTEMPTS = 3,
  ADDRESS = 5, /* assigned to the device */

  DEVICE = 1,
  CONFIGURATION,
  STRING,
  INTERFACE,
  ENDPOINT,
  DEVICE_QUALIFIER,
  CS_INTERFACE = 0x24,
  CS_UNION = 6,

  GET = 0x80, /* bmRequestType */
  SET = 0x00,
  SET_OF_CLASS = 0x21,
  SET_ADDRESS = 5, /* bRequest */
  GET_DESCRIPTOR = 6,
  SET_CONFIGURATION = 9,
  SET_LINE_CODING = 0x20,
  US_ENGLISH = 0x0409,
};

static void take_step(struct usb_bus *bus);

void usb_host_wait(struct usb_bus *bus, uint64_t us,
                   void (*waited)(struct usb_bus *bus)) {
  bus->host->waited = waited;
  event_at(bus->m, &bus->host->waits, bus->m->now + usb_bus_ticks(bus, us));
}

static void wait_is_over(void *owner, uint64_t at) {
  (void)at;
  struct usb_bus *bus = owner;
  bus->host->waited(bus);
}

/* -- requests -- */

void usb_host_note(struct usb_bus *bus, int result) {
  struct usb_host *h = bus->host;
  struct usb_request *entry = &h->log[(h->logged - 1) % REQUEST_LOG];
  entry->result = result;
  if (result > 0)
    memcpy(entry->data, bus->control.data,
           (size_t)result < sizeof entry->data ? (size_t)result
                                               : sizeof entry->data);
}

void usb_host_send(struct usb_bus *bus, const uint8_t setup[8],
                   const void *data,
                   void (*then)(struct usb_bus *bus, int result)) {
  struct usb_host *h = bus->host;
  struct usb_request *entry = &h->log[h->logged++ % REQUEST_LOG];
  *entry = (struct usb_request){.result = CONTROL_PENDING,
                                .address = (uint8_t)bus->address};
  memcpy(entry->setup, setup, 8);
  h->busy = true;
  usb_bus_control(bus, setup, data, then);
}

void usb_host_ask(struct usb_bus *bus, unsigned type, unsigned request,
                  unsigned value, unsigned index, unsigned length,
                  const void *data,
                  void (*then)(struct usb_bus *bus, int result)) {
  const uint8_t setup[8] = {(uint8_t)type,   (uint8_t)request,
                            (uint8_t)value,  (uint8_t)(value >> 8),
                            (uint8_t)index,  (uint8_t)(index >> 8),
                            (uint8_t)length, (uint8_t)(length >> 8)};
  usb_host_send(bus, setup, data, then);
}

/* -- enumeration -- */

static void fail(struct usb_bus *bus, const char *why) {
  struct usb_host *h = bus->host;
  h->state = USB_FAILED;
  snprintf(h->complaint, sizeof h->complaint, "%s", why);
  usb_bus_abort(bus);
}

static void try_again(struct usb_bus *bus, const char *why) {
  struct usb_host *h = bus->host;
  if (++h->attempts == ATTEMPTS) {
    fail(bus, why);
  } else {
    h->step = FIRST_RESET;
    take_step(bus);
  }
}

static void recovered(struct usb_bus *bus) {
  bus->host->step++;
  take_step(bus);
}

static void reset_ended(struct usb_bus *bus) {
  bus->device.reset(bus->device.owner);
  usb_bus_quiet(bus, false);
  usb_host_wait(bus, RECOVERY_US, recovered);
}

static void reset(struct usb_bus *bus) {
  usb_bus_abort(bus);
  usb_bus_quiet(bus, true);
  bus->address = 0;
  usb_host_wait(bus, RESET_US, reset_ended);
}

/* Find the two interfaces and three endpoints of a serial port. */
static bool find_port(struct usb_host *h, const uint8_t *data, unsigned size) {
  unsigned interface = 0, data_interface = 256;
  memset(h->endpoints, 0, sizeof h->endpoints);
  for (unsigned at = 0; at < size; at += data[at]) {
    const uint8_t *d = data + at;
    if (d[0] < 2 || at + d[0] > size)
      return false;
    if (d[1] == INTERFACE && d[0] >= 9) {
      interface = d[2];
      if (d[5] == 2 && d[6] == 2)
        h->interface = interface;
    } else if (d[1] == CS_INTERFACE && d[0] >= 5 && d[2] == CS_UNION) {
      data_interface = d[4];
    } else if (d[1] == ENDPOINT && d[0] >= 7) {
      const bool bulk = d[3] == 2 && interface == data_interface &&
                        (d[4] | d[5] << 8) == HOST_PACKET;
      if (d[3] == 3 && interface == h->interface)
        h->endpoints[PIPE_NOTICE] = d[2];
      else if (bulk)
        h->endpoints[d[2] & 0x80 ? PIPE_IN : PIPE_OUT] = d[2];
    }
  }
  return h->endpoints[PIPE_NOTICE] && h->endpoints[PIPE_IN] &&
         h->endpoints[PIPE_OUT];
}

static bool understand_device(struct usb_host *h, const uint8_t *d, int size) {
  if (size < 18 || d[0] != 18 || d[1] != DEVICE || d[7] != HOST_PACKET)
    return false;
  h->texts[0] = d[15];
  h->texts[1] = d[14];
  h->texts[2] = d[16];
  return true;
}

/* Evaluate the answer to this step's request. Return NULL if the answer is
   right, or else a text that states what is wrong. */
static const char *understand(struct usb_bus *bus, int size) {
  struct usb_host *h = bus->host;
  const uint8_t *data = bus->control.data;
  switch (h->step) {
  case FIRST_LOOK:
  case DEVICE_DESCRIPTOR:
    return understand_device(h, data, size)
               ? NULL
               : "the device has no sound device descriptor";
  case CONFIGURATION_HEAD:
    h->total_bytes = (unsigned)(data[2] | data[3] << 8);
    h->configuration = data[5];
    return size == 9 && data[1] == CONFIGURATION
               ? NULL
               : "the device has no configuration descriptor";
  case WHOLE_CONFIGURATION:
    return (unsigned)size == h->total_bytes &&
                   find_port(h, data, h->total_bytes)
               ? NULL
               : "the device's configuration has no serial port";
  default:
    return NULL;
  }
}

static void configured(struct usb_bus *bus) {
  struct usb_host *h = bus->host;
  for (unsigned i = PIPE_NOTICE; i < PIPES; i++)
    usb_bus_open(bus, (enum pipe_name)i, h->endpoints[i]);
  h->baud = ENUMERATION_BAUD;
}

static void step_answered(struct usb_bus *bus, int result) {
  struct usb_host *h = bus->host;
  const bool optional = (h->step >= LANGUAGES && h->step <= SERIAL_NUMBER) ||
                        (h->step >= QUALIFIER && h->step <= QUALIFIER_AT_LAST);
  h->busy = false;
  usb_host_note(bus, result);
  if (result < 0 && !optional) {
    try_again(bus, result == CONTROL_STALLED
                       ? "the device refuses a request that every device has"
                       : "the device does not answer");
    return;
  }
  const char *wrong = understand(bus, result);
  if (wrong) {
    try_again(bus, wrong);
    return;
  }
  if (h->step == GIVE_ADDRESS) {
    bus->address = ADDRESS;
    usb_host_wait(bus, RECOVERY_US, recovered);
    return;
  }
  if (h->step == CONFIGURE)
    configured(bus);
  h->step++;
  take_step(bus);
}

void usb_host_set_line_coding(struct usb_bus *bus, uint32_t baud,
                              void (*then)(struct usb_bus *bus, int result)) {
  const uint8_t coding[7] = {(uint8_t)baud,
                             (uint8_t)(baud >> 8),
                             (uint8_t)(baud >> 16),
                             (uint8_t)(baud >> 24),
                             0,
                             0,
                             8};
  usb_host_ask(bus, SET_OF_CLASS, SET_LINE_CODING, 0, bus->host->interface, 7,
               coding, then);
}

/* Request the descriptor of this step: its type, its length, and for a string
   its number and language. */
static void get_descriptor(struct usb_bus *bus) {
  static const uint8_t descriptors[][2] = {
      [FIRST_LOOK] = {DEVICE, 64},
      [DEVICE_DESCRIPTOR] = {DEVICE, 18},
      [QUALIFIER] = {DEVICE_QUALIFIER, 10},
      [QUALIFIER_AGAIN] = {DEVICE_QUALIFIER, 10},
      [QUALIFIER_AT_LAST] = {DEVICE_QUALIFIER, 10},
      [CONFIGURATION_HEAD] = {CONFIGURATION, 9},
      [WHOLE_CONFIGURATION] = {CONFIGURATION, 0},
      [LANGUAGES] = {STRING, 255},
      [PRODUCT] = {STRING, 255},
      [MANUFACTURER] = {STRING, 255},
      [SERIAL_NUMBER] = {STRING, 255},
  };
  const struct usb_host *h = bus->host;
  const uint8_t *d = descriptors[h->step];
  const bool text = h->step >= PRODUCT;
  usb_host_ask(bus, GET, GET_DESCRIPTOR,
               (unsigned)d[0] << 8 | (text ? h->texts[h->step - PRODUCT] : 0),
               text ? US_ENGLISH : 0,
               h->step == WHOLE_CONFIGURATION ? h->total_bytes : d[1], NULL,
               step_answered);
}

static void take_step(struct usb_bus *bus) {
  struct usb_host *h = bus->host;
  switch (h->step) {
  case FIRST_RESET:
  case SECOND_RESET:
    reset(bus);
    break;
  case GIVE_ADDRESS:
    usb_host_ask(bus, SET, SET_ADDRESS, ADDRESS, 0, 0, NULL, step_answered);
    break;
  case CONFIGURE:
    usb_host_ask(bus, SET, SET_CONFIGURATION, h->configuration, 0, 0, NULL,
                 step_answered);
    break;
  case LINE_CODING:
    usb_host_set_line_coding(bus, ENUMERATION_BAUD, step_answered);
    break;
  case ENUMERATED:
    h->state = USB_READY;
    usb_tty_next(bus);
    break;
  default:
    get_descriptor(bus);
    break;
  }
}

static void enumerate(struct usb_bus *bus) {
  struct usb_host *h = bus->host;
  h->state = USB_ENUMERATING;
  h->busy = h->open = h->asks = false;
  h->stalled = h->urb_bytes = h->attempts = 0;
  h->step = FIRST_RESET;
  take_step(bus);
}

void usb_host_connected(struct usb_bus *bus, bool connected) {
  struct usb_host *h = bus->host;
  usb_bus_abort(bus);
  h->state = connected ? USB_ENUMERATING : USB_ABSENT;
  h->to_device.tail = h->to_device.head;
  if (connected)
    usb_host_wait(bus, DEBOUNCE_US, enumerate);
  else
    event_cancel(&h->waits);
}

/* -- for the outside -- */

void usb_host_create(struct usb_bus *bus) {
  bus->host = calloc(1, sizeof *bus->host);
  bus->host->wants_baud = ENUMERATION_BAUD;
  event_add(bus->m, &bus->host->waits, wait_is_over, bus);
}

void usb_host_free(struct usb_bus *bus) {
  free(bus->host);
}

enum usb_state machine_usb_state(const struct machine *m) {
  return m->usb ? m->usb->host->state : USB_ABSENT;
}

const char *machine_usb_complaint(const struct machine *m) {
  return m->usb ? m->usb->host->complaint : "this chip has no USB";
}

void machine_usb_reset(struct machine *m) {
  struct usb_host *h = m->usb->host;
  if (h->state != USB_ABSENT) {
    h->to_device.tail = h->to_device.head; /* as when a port hangs up */
    enumerate(m->usb);
  }
}

uint32_t machine_usb_requests(const struct machine *m) {
  return m->usb ? m->usb->host->logged : 0;
}

struct usb_request machine_usb_request(const struct machine *m,
                                       uint32_t number) {
  return m->usb->host->log[number % REQUEST_LOG];
}
