/*
 * usb.c - nRF52840: the USB device controller (USBD). It buffers one packet per
 * endpoint and direction. EasyDMA moves packets between those buffers and RAM,
 * one at a time. A move takes microseconds, so the code waits for its end.
 *
 * State: struct controller. `came` marks packets that wait in the controller's
 * buffers; `into` points to buffers in RAM that wait for packets. fetch() moves
 * a packet as soon as the packet and its buffer in RAM are both there.
 *
 * Order:
 * - Within an interrupt, a SETUP is handled last, because it ends all earlier
 *   requests. Once a SETUP is pending, nothing is started for an older request.
 * - Such a task follows its check for a SETUP within a few cycles, because the
 *   controller takes the task for an answer to the latest SETUP, and has no
 *   task that undoes EP0STALL (function `start`).
 * - An event is cleared before the task that sets it is started, and only if it
 *   has been read as set: otherwise it may be set just before it is cleared.
 *
 * Anomalies 171, 187, 199 and 211 are worked around as in Nordic's nrfx.
 * Anomaly 166 concerns isochronous endpoints, which are not used.
 */
#include "usb.h"

#include "chip.h"
#include "health.h"
#include "parts.h"
#include "registers.h"

enum {
  ENDPOINTS = 3, /* 0 to USB_DATA_OUT */
  NUMBER = 7,    /* of an endpoint's address */
  OUT_BIT = 16,  /* in EPDATASTATUS */
  REQUEST_IN = 0x80,
  MOST_POLLS = 10000, /* over 1 ms; a move takes microseconds */
  SET_ADDRESS = 5,
};

static struct {
  bool ready;               /* the controller reported ready after ENABLE */
  bool odd;                 /* EasyDMA has moved an odd total number of bytes */
  bool control_in;          /* the data stage of the current request is IN */
  bool sets_address;        /* the controller itself answers this request */
  uint8_t came;             /* bit n: an OUT packet for endpoint n waits */
  uint8_t *into[ENDPOINTS]; /* RAM for these packets, or NULL */
} controller;

static bool take(volatile uint32_t *event) {
  if (!*event) {
    return false;
  }
  *event = 0;
  return true;
}

/* Return true if a newer SETUP is pending, so that this request is
 * abandoned. */
static bool outdated(uint8_t endpoint) {
  return !(endpoint & NUMBER) && USBD_EVENTS_EP0SETUP;
}

/* Start a task. If the task is for the current request (`control`), do not
 * start it after a newer SETUP: writing 0 has no effect. Return true if the
 * task is started.
 *
 * A SETUP that arrives between check and write gets the answer to the older
 * request, so no branch and, by the alignment, no fetch from another page of
 * flash separates the two. */
__attribute__((noinline, aligned(32))) static bool
start(volatile uint32_t *task, bool control) {
  const uint32_t was = chip_lock();
  const uint32_t go = !(control & USBD_EVENTS_EP0SETUP);
  *task = go;
  chip_unlock(was);
  return go;
}

/* -- EasyDMA -- */

static void move(volatile uint32_t *task, volatile uint32_t *ended,
                 uint32_t size, bool control) {
  *ended = 0;
  USBD_MOVING = 0x82; /* anomaly 199: avoids losing the host's next packet */
  chip_finish_stores();
  if (start(task, control)) {
    for (uint32_t polls = 0; !*ended; polls++) {
      if (polls == MOST_POLLS) {
        health_restart(POET_RESET_usb, (uint32_t)(uintptr_t)task);
      }
    }
    controller.odd ^= size & 1;
  }
  USBD_MOVING = 0;
}

static void move_in(unsigned n, const uint8_t *data, uint32_t size,
                    bool control) {
  USBD_EPIN_PTR(n) = (uint32_t)(uintptr_t)data;
  USBD_EPIN_MAXCNT(n) = size;
  move(&USBD_TASKS_STARTEPIN(n), &USBD_EVENTS_ENDEPIN(n), size, control);
}

/* If a packet and its buffer in RAM are both there, move the packet to the
 * buffer. Then the controller accepts the next packet by itself. */
static void fetch(unsigned n) {
  uint8_t *const to = controller.into[n];
  if (!to || !(controller.came >> n & 1)) {
    return;
  }
  controller.into[n] = NULL;
  controller.came &= (uint8_t)~(1u << n);
  const uint32_t size = USBD_SIZE_EPOUT(n);
  USBD_EPOUT_PTR(n) = (uint32_t)(uintptr_t)to;
  USBD_EPOUT_MAXCNT(n) = size;
  move(&USBD_TASKS_STARTEPOUT(n), &USBD_EVENTS_ENDEPOUT(n), size, false);
  usb_received((uint8_t)n, size);
}

/* -- on and off -- */

/* Write a register that a key unlocks. Each write of the key toggles the lock,
 * so no interrupt may come between the writes. */
static void write_hidden(volatile uint32_t *hidden, uint32_t value) {
  const uint32_t was = chip_lock();
  const bool locked = USBD_HIDDEN_KEY == 0;
  if (locked) {
    USBD_HIDDEN_KEY = 0x9375;
  }
  *hidden = value;
  if (locked) {
    USBD_HIDDEN_KEY = 0x9375;
  }
  chip_unlock(was);
}

static void enable(void) {
  write_hidden(&USBD_HIDDEN_187, 3); /* 187; for 211 until disable() */
  write_hidden(&USBD_HIDDEN_171, 0xc0);
  USBD_INTENSET = USBD_INT_USBRESET | USBD_INT_EP0DATADONE | USBD_INT_USBEVENT |
                  USBD_INT_EP0SETUP | USBD_INT_EPDATA;
  USBD_ENABLE = 1;
}

/* Drop events that have not been handled. */
static void forget_events(void) {
  controller.came = 0;
  USBD_EVENTS_USBRESET = 0;
  USBD_EVENTS_EPDATA = 0;
  USBD_EVENTS_EP0DATADONE = 0;
  USBD_EVENTS_EP0SETUP = 0;
}

static void disable(void) {
  static uint32_t spare;
  if (controller.ready) {
    USBD_USBPULLUP = 0;
  }
  if (controller.odd) {
    /* Make the number of moved bytes even. If it stays odd, the first move
     * after a restart fails. */
    move_in(0, (const uint8_t *)&spare, 1, false);
  }
  USBD_ENABLE = 0;
  USBD_EVENTCAUSE = USBD_EVENTCAUSE;
  forget_events();
  write_hidden(&USBD_HIDDEN_171, 0);
  write_hidden(&USBD_HIDDEN_187, 0);
  controller.ready = false;
  usb_reset();
}

/* When the cable supplies 5 V, the regulator starts: then enable the
 * controller. Connect to the bus when regulator and controller are ready. The
 * crystal is running already. */
static void follow_supply(void) {
  const uint32_t supply = POWER_USBREGSTATUS;
  if (!(supply & POWER_VBUSDETECT)) {
    if (USBD_ENABLE) {
      disable();
    }
  } else if (!USBD_ENABLE) {
    enable();
  } else if (controller.ready && (supply & POWER_OUTPUTRDY)) {
    USBD_USBPULLUP = 1;
  }
}

void power_clock_handler(void) {
  POWER_EVENTS_USBDETECTED = 0;
  POWER_EVENTS_USBREMOVED = 0;
  POWER_EVENTS_USBPWRRDY = 0;
  follow_supply();
}

void chip_usb_attach(void) {
  POWER_INTENSET = POWER_INT_USB;
  nrf52840_interrupt(IRQ_USBD, LANE_PRIORITY);
  nrf52840_interrupt(IRQ_POWER_CLOCK, LANE_PRIORITY);
  NVIC_ISPR(IRQ_POWER_CLOCK / 32) = 1u << IRQ_POWER_CLOCK % 32;
}

/* -- events -- */

static void bus_reset(void) {
  forget_events();
  chip_usb_configure(false);
  controller.into[0] = NULL;
  usb_reset();
}

static void causes(void) {
  const uint32_t cause = USBD_EVENTCAUSE;
  USBD_EVENTCAUSE = cause;
  if (cause & USBD_READY) {
    write_hidden(&USBD_HIDDEN_171, 0);
    controller.ready = true;
    follow_supply();
  }
  if (cause & USBD_SUSPEND) {
    usb_suspend(true);
  }
  if (cause & USBD_RESUME) {
    usb_suspend(false);
  }
}

static void data_done(void) {
  const uint32_t done = USBD_EPDATASTATUS;
  USBD_EPDATASTATUS = done;
  for (unsigned n = 1; n < ENDPOINTS; n++) {
    if (done >> n & 1) {
      usb_sent((uint8_t)(USB_CONTROL_IN | n));
    }
    controller.came |= (uint8_t)((done >> (OUT_BIT + n) & 1) << n);
  }
}

static void control_done(void) {
  if (controller.control_in) {
    usb_sent(USB_CONTROL_IN);
  } else {
    controller.came |= 1;
  }
}

static void setup(void) {
  uint8_t packet[8];
  USBD_EVENTS_EP0DATADONE = 0; /* of an older request */
  for (unsigned i = 0; i < sizeof packet; i++) {
    packet[i] = (uint8_t)USBD_SETUP(i);
  }
  if (outdated(USB_CONTROL_OUT)) { /* `packet` may be a mix of two SETUPs */
    return;
  }
  controller.control_in = packet[0] & REQUEST_IN;
  controller.sets_address = packet[0] == 0 && packet[1] == SET_ADDRESS;
  controller.came &= (uint8_t)~1u;
  controller.into[0] = NULL;
  usb_setup(packet);
}

void usbd_handler(void) {
  if (take(&USBD_EVENTS_USBRESET)) {
    bus_reset();
  }
  if (take(&USBD_EVENTS_USBEVENT)) {
    causes();
  }
  if (take(&USBD_EVENTS_EPDATA)) {
    data_done();
  }
  if (take(&USBD_EVENTS_EP0DATADONE)) {
    control_done();
  }
  fetch(0);
  fetch(USB_DATA_OUT);
  if (take(&USBD_EVENTS_EP0SETUP)) { /* last: it ends what came before */
    setup();
  }
}

/* -- requests of the portable part -- */

/* The controller executes SET_ADDRESS itself. */
void chip_usb_address(uint8_t address) {
  (void)address;
}

/* End a halt and continue with DATA0. The first write to DTOGGLE selects the
 * endpoint, the second sets the value. */
static void restart(uint8_t endpoint) {
  USBD_EPSTALL = endpoint;
  USBD_DTOGGLE = endpoint;
  USBD_DTOGGLE = USBD_DATA0 | endpoint;
}

/* Drop a packet that the host has not fetched yet. The registers are written as
 * in Nordic's nrfx. */
static void disarm(uint8_t endpoint) {
  const unsigned n = endpoint & NUMBER;
  USBD_TEST_SELECT = 0x7b4 + 2 * n;
  USBD_TEST_VALUE |= n ? 1u << 1 : 1u << 2;
  (void)USBD_TEST_VALUE;
}

void chip_usb_configure(bool configured) {
  static const uint8_t in[] = {USB_NOTICE_IN, USB_DATA_IN};
  controller.came = 0;
  controller.into[USB_DATA_OUT] = NULL;
  USBD_EPINEN = 1;
  USBD_EPOUTEN = 1;
  for (unsigned i = 0; i < sizeof in; i++) {
    disarm(in[i]);
    restart(in[i]);
  }
  restart(USB_DATA_OUT);
  USBD_EPDATASTATUS = USBD_EPDATASTATUS;
  if (configured) {
    USBD_EPINEN =
        1 | 1u << (USB_NOTICE_IN & NUMBER) | 1u << (USB_DATA_IN & NUMBER);
    USBD_EPOUTEN = 1 | 1u << USB_DATA_OUT;
    USBD_SIZE_EPOUT(USB_DATA_OUT) = 0; /* accept the first packet */
  }
}

/* The data sheet does not say that a SETUP during the move drops the packet, so
 * it is dropped here. */
void chip_usb_send(uint8_t endpoint, const uint8_t *data, uint32_t size) {
  const unsigned n = endpoint & NUMBER;
  move_in(n, data, size, n == 0);
  if (outdated(endpoint)) {
    disarm(endpoint);
  }
}

void chip_usb_receive(uint8_t endpoint, uint8_t *data) {
  controller.into[endpoint] = data;
  if (endpoint == USB_CONTROL_OUT) {
    start(&USBD_TASKS_EP0RCVOUT, true);
  } else if (controller.came >> endpoint & 1) {
    NVIC_ISPR(IRQ_USBD / 32) = 1u << IRQ_USBD % 32;
  }
}

/* The controller does not report the end of the status stage. */
void chip_usb_status(bool in) {
  (void)in;
  if (!controller.sets_address) {
    start(&USBD_TASKS_EP0STATUS, true);
  }
  usb_status_ended();
}

void chip_usb_stall(uint8_t endpoint, bool stalled) {
  if (!(endpoint & NUMBER)) {
    start(&USBD_TASKS_EP0STALL, true);
  } else if (stalled) {
    USBD_EPSTALL = USBD_STALL | endpoint;
  } else {
    restart(endpoint);
  }
}

void chip_usb_touched(void) {
}

void chip_usb_poll(void) {
  power_clock_handler();
  usbd_handler();
}
