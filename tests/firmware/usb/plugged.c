/* The loop-back controller on the simulated bus, with the simulated host at its
   other end. Time is in microseconds. */
#include <stdlib.h>
#include <string.h>

#include "loopback.h"
#include "usb_host.h"

enum { LOG = 256, TICK_HZ = 48000000, TICKS_PER_US = 48 };

static struct machine machine;
static uint8_t sent_sizes[LOG]; /* of the data endpoint's packets */
static unsigned sent_count;
static uint8_t taken; /* address, once the status stage has ended */

/* -- the part of a machine that a bus needs -- */

void event_add(struct machine *m, struct event *event,
               void (*fire)(void *owner, uint64_t at), void *owner) {
  *event = (struct event){.at = NEVER, .fire = fire, .owner = owner};
  m->events[m->event_count++] = event;
}

void event_at(struct machine *m, struct event *event, uint64_t at) {
  (void)m;
  event->at = at;
}

void event_cancel(struct event *event) {
  event->at = NEVER;
}

/* False: nothing will ever happen. */
static bool fire_next(uint64_t limit) {
  struct event *next = machine.events[0];
  for (unsigned i = 1; i < machine.event_count; i++)
    if (machine.events[i]->at < next->at)
      next = machine.events[i];
  const uint64_t at = next->at;
  if (at > limit)
    return false;
  if (at > machine.now)
    machine.now = at;
  next->at = NEVER;
  next->fire(next->owner, at);
  return true;
}

static void until(uint64_t at) {
  while (fire_next(at)) {
  }
  if (at > machine.now)
    machine.now = at;
}

/* -- the controller as the bus sees it -- */

static bool here(unsigned address) {
  return address == controller.address;
}

static void power(void *owner, bool on) {
  (void)owner;
  if (!on) {
    controller.address = 0;
    usb_reset();
  }
}

static void reset(void *owner) {
  (void)owner;
  controller.address = 0;
  for (unsigned i = 0; i < SLOTS; i++)
    give_up(&controller.slots[i]);
  chip_usb_configure(false);
  usb_reset();
}

static void suspend(void *owner) {
  (void)owner;
  usb_suspend(true);
}

static void resume(void *owner) {
  (void)owner;
  usb_suspend(false);
}

static enum usb_answer setup(void *owner, unsigned address, unsigned endpoint,
                             const uint8_t packet[8]) {
  (void)owner;
  if (!here(address) || endpoint)
    return USB_SILENCE;
  controller.stalled = controller.status_due = false;
  give_up(slot_of(USB_CONTROL_OUT));
  give_up(slot_of(USB_CONTROL_IN));
  slot_of(USB_CONTROL_OUT)->toggle = slot_of(USB_CONTROL_IN)->toggle = true;
  taken = packet[0] == 0 && packet[1] == 5 ? packet[2] : 0;
  usb_setup(packet);
  return USB_ACK;
}

/* NAK, STALL or SILENCE; ACK: go on. */
static enum usb_answer able(unsigned address, const struct slot *slot,
                            bool control) {
  return !here(address) || !slot->open ? USB_SILENCE
         : control      ? (controller.stalled ? USB_STALL : USB_ACK)
         : slot->halted ? USB_STALL
                        : USB_ACK;
}

static enum usb_answer out(void *owner, unsigned address, unsigned endpoint,
                           bool toggle, const uint8_t *data, unsigned size) {
  (void)owner;
  struct slot *slot = slot_of((uint8_t)endpoint);
  const enum usb_answer answer = able(address, slot, !endpoint);
  if (answer != USB_ACK)
    return answer;
  if (!endpoint && controller.status_due && !controller.status_in) {
    status_taken();
    return USB_ACK;
  }
  if (!slot->given)
    return USB_NAK;
  if (toggle == slot->toggle)
    delivered(slot, data, size);
  return USB_ACK;
}

static enum usb_answer in(void *owner, unsigned address, unsigned endpoint,
                          bool *toggle, uint8_t *data, unsigned *size) {
  (void)owner;
  struct slot *slot = slot_of((uint8_t)(endpoint | 0x80));
  const enum usb_answer answer = able(address, slot, !endpoint);
  *size = 0;
  if (answer != USB_ACK)
    return answer;
  if (!endpoint && controller.status_due && controller.status_in) {
    *toggle = true;
    return USB_ACK;
  }
  if (!slot->given)
    return USB_NAK;
  *toggle = slot->toggle;
  *size = slot->size;
  memcpy(data, slot->out, slot->size);
  return USB_ACK;
}

static void sent(void *owner, unsigned endpoint) {
  (void)owner;
  struct slot *slot = slot_of((uint8_t)(endpoint | 0x80));
  if (!endpoint && controller.status_due && controller.status_in) {
    status_taken();
    if (taken)
      controller.address = taken;
  } else if (slot->given) {
    if (endpoint)
      sent_sizes[sent_count++ % LOG] = (uint8_t)slot->size;
    fetched(slot);
  }
}

/* -- for the tests -- */

/* Whatever the firmware has done, the host may look again. */
static void firmware_ran(void) {
  machine.now = controller.now_us * TICKS_PER_US > machine.now
                    ? controller.now_us * TICKS_PER_US
                    : machine.now;
  usb_bus_ready(machine.usb);
}

static void time_passes(void) {
  firmware_ran();
  until(machine.now);
}

struct machine *plugged_start(const char *product, const char *serial,
                              bool reports_status) {
  static const struct usb_device device = {.power = power,
                                           .reset = reset,
                                           .suspend = suspend,
                                           .resume = resume,
                                           .setup = setup,
                                           .out = out,
                                           .in = in,
                                           .sent = sent};
  machine.tick_hz = TICK_HZ;
  controller.reports_status = reports_status;
  controller.sleep_us = 1;
  usb_bus_create(&machine, &device);
  usb_start(product, serial);
  controller.meanwhile = controller.poll = time_passes;
  usb_bus_pull_up(machine.usb, true);
  machine_usb_plug(&machine, true);
  return &machine;
}

/* Let the host go on for so long; true if it then has more to do. */
bool plugged_run(uint32_t us) {
  const uint64_t end = machine.now + (uint64_t)us * TICKS_PER_US;
  usb_bus_ready(machine.usb);
  until(end);
  controller.now_us = machine.now / TICKS_PER_US;
  for (unsigned i = 0; i < machine.event_count; i++)
    if (machine.events[i]->at != NEVER)
      return true;
  return false;
}

uint64_t plugged_ticks(void) {
  return machine.now;
}

unsigned plugged_sent(uint8_t sizes[256]) {
  memcpy(sizes, sent_sizes, LOG);
  return sent_count;
}

unsigned plugged_touches(void) {
  return controller.touches;
}

void plugged_uart_give(const uint8_t *data, uint32_t size) {
  memcpy(uart.in, data, size);
  uart.in_size = size;
}

uint32_t plugged_uart_take(uint8_t data[4096]) {
  const uint32_t size = uart.out_size;
  memcpy(data, uart.out, size);
  uart.out_size = 0;
  return size;
}
