/* usb_host.h - the simulated host: transactions on the bus (usb_bus.c),
   enumeration as Linux does it (usb_host.c), and the serial port (usb_tty.c).
 */
#pragma once

#include "machine.h"
#include "usb_bus.h"

enum {
  HOST_PACKET = 64, /* packet size of full-speed bulk and control endpoints */
  CONTROL_BYTES = 512,
};

enum pipe_name { PIPE_CONTROL, PIPE_NOTICE, PIPE_IN, PIPE_OUT, PIPES };

/* Results of a control transfer that are not a number of bytes. */
enum { CONTROL_STALLED = -1, CONTROL_SILENT = -2, CONTROL_PENDING = -3 };

struct usb_pipe {
  unsigned endpoint;
  bool in, toggle;
  bool active;       /* the host has transactions for this pipe */
  bool refused;      /* the pipe was answered NAK and waits for usb_bus_ready */
  bool refused_once; /* the last answer was NAK, at `refused_at` */
  uint64_t refused_at;
  uint64_t period;   /* time between two repeated transactions of the pipe */
  unsigned silences; /* attempts without an answer in succession */
};

struct usb_control {
  uint8_t setup[8], data[CONTROL_BYTES];
  unsigned length, done;
  enum { STAGE_SETUP, STAGE_DATA, STAGE_STATUS } stage;
  void (*then)(struct usb_bus *bus, int result);
};

struct usb_bus {
  struct machine *m;
  struct usb_device device;
  bool plugged, pulled_up, quiet; /* quiet: suspended, or being reset */
  unsigned address;
  struct usb_pipe pipes[PIPES];
  struct usb_control control;
  /* the pipe whose transaction ends with `ended`; NULL: none */
  struct usb_pipe *running;
  /* The answer to an IN that is running, once its token has ended. */
  struct usb_reply {
    bool given, toggle;
    bool outdated; /* the device has called usb_bus_ready since */
    enum usb_answer answer;
    uint8_t data[HOST_PACKET];
    unsigned size;
  } reply;
  unsigned turn;            /* the pipe that was served last */
  bool performing;          /* an answer is being handled */
  struct event ended, late; /* `late`: a control transfer takes too long */
  uint8_t out[HOST_PACKET];
  unsigned out_size;
  struct usb_host *host;
};

enum {
  ENUMERATION_BAUD = 9600, /* the driver sets it before the port is opened */
  URB_BYTES = 128, /* the driver reads two packets at once; a short or empty one
                      ends the read earlier */
  REQUEST_LOG = 64,
};

enum step {
  FIRST_RESET,
  FIRST_LOOK,
  SECOND_RESET,
  GIVE_ADDRESS,
  DEVICE_DESCRIPTOR,
  QUALIFIER, /* only high-speed devices have one: it is refused */
  QUALIFIER_AGAIN,
  QUALIFIER_AT_LAST,
  CONFIGURATION_HEAD,
  WHOLE_CONFIGURATION,
  LANGUAGES,
  PRODUCT,
  MANUFACTURER,
  SERIAL_NUMBER,
  CONFIGURE,
  LINE_CODING,
  ENUMERATED,
};

struct usb_host {
  enum usb_state state;
  char complaint[160];
  enum step step;
  unsigned attempts, texts[3]; /* product, manufacturer, serial number */
  unsigned total_bytes, configuration, interface, endpoints[PIPES];

  struct event waits;
  void (*waited)(struct usb_bus *bus);

  bool busy, wants_open, open;
  uint32_t wants_baud, baud;
  unsigned stalled; /* bit n: the halt of pipe n must be cleared */
  enum pipe_name clearing;
  bool asks;    /* a request of machine_usb_ask waits or runs */
  int answered; /* result of that request */
  uint8_t asked[8], asked_data[CONTROL_BYTES];

  struct serial_ring to_device, from_device;
  uint8_t urb[URB_BYTES];
  unsigned urb_bytes;
  struct usb_request log[REQUEST_LOG];
  uint32_t logged;
};

/* -- usb_bus.c for the others -- */
uint64_t usb_bus_ticks(const struct usb_bus *bus, uint64_t us);
/* Start a control transfer, with `data` if it goes to the device. */
void usb_bus_control(struct usb_bus *bus, const uint8_t setup[8],
                     const void *data,
                     void (*then)(struct usb_bus *bus, int result));
/* If a SETUP is running, end it now. */
void usb_bus_hurry(struct usb_bus *bus);
void usb_bus_open(struct usb_bus *bus, enum pipe_name name, unsigned address);
void usb_bus_activate(struct usb_bus *bus, enum pipe_name name, bool active);
void usb_bus_quiet(struct usb_bus *bus, bool quiet);
/* Abort all transfers, without their callbacks. */
void usb_bus_abort(struct usb_bus *bus);

/* -- usb_host.c -- */
void usb_host_create(struct usb_bus *bus);
void usb_host_free(struct usb_bus *bus);
void usb_host_connected(struct usb_bus *bus, bool connected);
void usb_host_wait(struct usb_bus *bus, uint64_t us,
                   void (*waited)(struct usb_bus *bus));
/* Send a request, one at a time. `then` must call usb_host_note. */
void usb_host_send(struct usb_bus *bus, const uint8_t setup[8],
                   const void *data,
                   void (*then)(struct usb_bus *bus, int result));
void usb_host_ask(struct usb_bus *bus, unsigned type, unsigned request,
                  unsigned value, unsigned index, unsigned length,
                  const void *data,
                  void (*then)(struct usb_bus *bus, int result));
void usb_host_note(struct usb_bus *bus, int result);
void usb_host_set_line_coding(struct usb_bus *bus, uint32_t baud,
                              void (*then)(struct usb_bus *bus, int result));

/* -- usb_tty.c -- */
/* Send the next request that the port's state needs, if none is pending. */
void usb_tty_next(struct usb_bus *bus);
void usb_tty_received(struct usb_bus *bus, enum pipe_name name,
                      const uint8_t *data, unsigned size);
/* Take the next bytes to send, up to 64; returns their number. */
unsigned usb_tty_next_out(struct usb_bus *bus, uint8_t *data);
void usb_tty_stalled(struct usb_bus *bus, enum pipe_name name);
