/* Hostile hosts, and controllers that report nonsense: events in any order, at
   any moment at which an interrupt may come.

   What the sanitizers and the rules of loopback.c find ends it. Each round ends
   with a host that means well: the device must still serve it.

   The longest run: 2026-11-21, ten minutes from seed 1000000 on, 577,826 rounds
   of 300 events each (gcc 12.2, address and undefined-behaviour sanitizers).
   Nothing was found. */
#include <string.h>

#include "chip.h"
#include "link.h"
#include "loopback.h"

enum { EVENTS = 300, SEEN = 12 };
#include "../fuzz.h"

static const char *const names[SEEN] = {
    "resets",   "requests", "fetched", "delivered", "stray",  "statuses",
    "suspends", "received", "sent",    "linked",    "stalls", "configured"};

static void fill(uint8_t *data, uint32_t size) {
  for (uint32_t i = 0; i < size; i++)
    data[i] = (uint8_t)any(256);
}

/* Bytes to the data endpoint count up, so that what the thread gets shows where
   it is from. */
static uint8_t next_in, next_out;
static bool may_jump; /* a request may have dropped some */

static void count_up(uint8_t *data, uint32_t size) {
  for (uint32_t i = 0; i < size; i++)
    data[i] = next_in++;
}

static void receive(uint8_t *data, uint32_t room) {
  bool jump = may_jump;
  may_jump = false; /* an interrupt at its end may say otherwise */
  const uint32_t got = usb_receive(data, room);
  rule(got <= room, "no more than there is room for");
  may_jump = may_jump || (jump && !got);
  for (uint32_t i = 0; i < got; i++, jump = false) {
    rule(data[i] == next_out || jump, "bytes in their order");
    next_out = (uint8_t)(data[i] + 1);
  }
}

/* -- what comes from the bus -- */

static void bus_reset(void) {
  for (unsigned i = 0; i < SLOTS; i++)
    give_up(&controller.slots[i]);
  chip_usb_configure(false);
  controller.stalled = controller.status_due = false;
  may_jump = true;
  usb_reset();
}

/* Requests that a device knows, then anything done to them. */
static const uint8_t known[][8] = {
    {0x80, 0, 0, 0, 0, 0, 2, 0},     {0x81, 0, 0, 0, 0, 0, 2, 0},
    {0x82, 0, 0, 0, 0x82, 0, 2, 0},  {0x02, 1, 0, 0, 0x82, 0, 0, 0},
    {0x02, 3, 0, 0, 0x02, 0, 0, 0},  {0x00, 5, 9, 0, 0, 0, 0, 0},
    {0x80, 6, 0, 1, 0, 0, 64, 0},    {0x80, 6, 0, 2, 0, 0, 67, 0},
    {0x80, 6, 1, 3, 9, 4, 255, 0},   {0x80, 6, 3, 3, 9, 4, 255, 0},
    {0x80, 6, 0, 6, 0, 0, 10, 0},    {0x80, 8, 0, 0, 0, 0, 1, 0},
    {0x00, 9, 1, 0, 0, 0, 0, 0},     {0x00, 9, 0, 0, 0, 0, 0, 0},
    {0x81, 10, 0, 0, 1, 0, 1, 0},    {0x01, 11, 0, 0, 1, 0, 0, 0},
    {0x21, 0x20, 0, 0, 0, 0, 7, 0},  {0xa1, 0x21, 0, 0, 0, 0, 7, 0},
    {0x21, 0x22, 3, 0, 0, 0, 0, 0},  {0x21, 0x22, 0, 0, 0, 0, 0, 0},
    {0x00, 7, 0, 1, 0, 0, 18, 0},    {0x02, 3, 0, 0, 0, 0, 0, 0},
    {0x82, 12, 0, 0, 0x81, 0, 2, 0}, {0xc0, 1, 0, 0, 4, 0, 255, 255},
};

static void setup(const uint8_t packet[8]) {
  may_jump = true;
  controller.stalled = controller.status_due = false;
  give_up(slot_of(USB_CONTROL_OUT));
  give_up(slot_of(USB_CONTROL_IN));
  usb_setup(packet);
  seen[1]++;
  seen[10] += controller.stalled;
  rule(controller.stalled + controller.status_due +
               slot_of(USB_CONTROL_IN)->given +
               slot_of(USB_CONTROL_OUT)->given ==
           1,
       "a request is stalled, or goes on with one stage");
}

static void any_request(void) {
  uint8_t packet[8];
  memcpy(packet, known[any(sizeof known / 8)], 8);
  for (uint32_t changes = any(3) ? 0 : any(9); changes; changes--)
    packet[any(8)] = (uint8_t)(any(2) ? any(256) : any(4));
  setup(packet);
}

/* The control transfer goes on as the device wants, mostly. */
static void go_on(void) {
  struct slot *in = slot_of(USB_CONTROL_IN), *out = slot_of(USB_CONTROL_OUT);
  uint8_t data[USB_PACKET];
  fill(data, sizeof data);
  if (in->given) {
    fetched(in);
  } else if (out->given) {
    if (any(3)) { /* a baud rate that is the sign for the boot loader, or not */
      const uint32_t baud = any(2) ? 1200 : 115200;
      memcpy(data, &baud, sizeof baud);
    }
    delivered(out, data, any(4) ? 7 : any(65));
  } else if (controller.status_due) {
    status_taken();
    seen[5]++;
  }
}

static void data_endpoint(void) {
  struct slot *in = slot_of(USB_DATA_IN), *out = slot_of(USB_DATA_OUT);
  uint8_t data[USB_PACKET];
  if (any(2) && in->given && !in->halted) {
    fetched(in);
    seen[2]++;
  } else if (out->given && !out->halted) {
    const uint32_t size = any(3) ? USB_PACKET : any(65);
    count_up(data, size);
    delivered(out, data, size);
    seen[3]++;
  }
}

/* What a sane controller never reports. */
static void stray(void) {
  static const uint8_t endpoints[] = {0x00, 0x80, 0x81, 0x02, 0x82};
  const uint8_t endpoint = endpoints[any(sizeof endpoints)];
  struct slot *slot = slot_of(endpoint);
  seen[4]++;
  if (any(4) == 0)
    usb_status_ended();
  else if (slot->given && !(endpoint & 0x80)) {
    give_up(slot); /* longer than an endpoint's packet may be */
    usb_received(endpoint, USB_PACKET + 1 + any(1000));
  } else if (slot->given)
    return;
  else if (endpoint & 0x80)
    usb_sent(endpoint);
  else
    usb_received(endpoint, any(3) ? any(66) : any(1 << 16));
}

static void event(void) {
  const uint32_t choice = any(100);
  if (choice < 1) {
    bus_reset();
    seen[0]++;
  } else if (choice < 20) {
    any_request();
  } else if (choice < 50) {
    go_on();
  } else if (choice < 85) {
    data_endpoint();
  } else if (choice < 90) {
    stray();
  } else if (choice < 93) {
    usb_suspend(any(3) == 0);
    seen[6]++;
  } else if (choice < 97) { /* what most of the rest needs first */
    setup(known[12]);
    go_on();
    setup(known[18]);
    go_on();
    seen[11]++;
  }
}

/* -- what the thread does -- */

static void act(void) {
  uint8_t data[300] = {0};
  const uint32_t size = any(3) ? any(80) : any(sizeof data);
  fill(data, size);
  switch (any(7)) {
  case 0:
    receive(data, size);
    seen[7]++;
    break;
  case 1:
    usb_send(data, size);
    seen[8]++;
    break;
  case 2:
    if (uart.in_size < 100)
      uart.in[uart.in_size++] = (uint8_t)any(256);
    break;
  case 3:
    (void)link_waiting();
    may_jump = true; /* it drops what the other port sends */
    break;
  case 4:
    rule(link_receive(data, size) <= size, "no more than there is room for");
    may_jump = true;
    seen[9]++;
    break;
  case 5:
    uart.out_size = 0;
    link_send(data, size);
    break;
  default:
    if (any(20) == 0) {
      uart.out_size = 0;
      link_last_words("poet: fault 03 at 00000000, from 00000000\r\n");
    }
  }
}

static void interrupt(void) {
  if (any(3) == 0)
    event();
}

/* -- a host that means well, afterwards -- */

static void whole_request(const uint8_t packet[8]) {
  setup(packet);
  for (unsigned i = 0; i < 8 && !controller.stalled; i++)
    go_on();
  rule(!controller.stalled, "a sound request is served");
}

static void serve(void) {
  static const uint8_t text[] = "still here?";
  uint8_t got[32];
  controller.meanwhile = controller.poll = NULL;
  bus_reset();
  setup(known[6]);
  rule(slot_of(USB_CONTROL_IN)->given && slot_of(USB_CONTROL_IN)->size == 18 &&
           slot_of(USB_CONTROL_IN)->copy[8] == (USB_VENDOR_ID & 0xff),
       "the device says who it is");
  go_on();
  go_on();
  whole_request(known[12]);
  whole_request(known[18]);
  struct slot *in = slot_of(USB_DATA_IN), *out = slot_of(USB_DATA_OUT);
  rule(out->given, "an open port listens");
  next_out = text[0];
  delivered(out, text, sizeof text);
  rule(usb_receive(got, sizeof got) == sizeof text &&
           memcmp(got, text, sizeof text) == 0,
       "what comes in comes out");
  usb_send(text, sizeof text);
  rule(in->given && in->size == sizeof text &&
           memcmp(in->copy, text, sizeof text) == 0,
       "what is sent is sent");
  fetched(in);
}

static void play(void) {
  controller.reports_status = any(2);
  controller.sleep_us = 20000;
  controller.meanwhile = controller.poll = interrupt;
  for (unsigned i = 0; i < EVENTS; i++) {
    if (any(2)) {
      const uint32_t was = chip_lock(); /* as if from an interrupt */
      event();
      controller.meanwhile = NULL;
      chip_unlock(was);
      controller.meanwhile = interrupt;
    } else {
      act();
    }
  }
  serve();
}

static void prepare(void) { usb_start("fuzz", "0123456789abcdef"); }
