#include "loopback.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chip.h"
#include "lane.h"

struct controller controller;
struct uart uart;

static const uint8_t addresses[SLOTS] = {
    USB_CONTROL_OUT, USB_CONTROL_IN, USB_NOTICE_IN, USB_DATA_OUT, USB_DATA_IN};

void rule(bool kept, const char *what) {
  if (!kept) {
    fprintf(stderr, "a rule of usb.h is broken: %s\n", what);
    abort();
  }
}

struct slot *slot_of(uint8_t endpoint) {
  for (unsigned i = 0; i < SLOTS; i++)
    if (addresses[i] == endpoint)
      return &controller.slots[i];
  rule(false, "an endpoint that the device does not have");
  return NULL;
}

void give_up(struct slot *slot) {
  slot->given = false;
}

void fetched(struct slot *slot) {
  rule(memcmp(slot->copy, slot->out, slot->size) == 0,
       "what is being sent stays as it is");
  slot->given = false;
  slot->toggle = !slot->toggle;
  usb_sent(slot->address);
}

void delivered(struct slot *slot, const uint8_t *data, uint32_t size) {
  memcpy(slot->in, data, size);
  slot->given = false;
  slot->toggle = !slot->toggle;
  usb_received(slot->address, size);
}

void status_taken(void) {
  controller.status_due = false;
  if (controller.reports_status)
    usb_status_ended();
}

/* -- what the firmware wants of a chip (usb.h) -- */

void chip_usb_attach(void) {
  controller.attached++;
  for (unsigned i = 0; i < SLOTS; i++)
    controller.slots[i].address = addresses[i];
  slot_of(USB_CONTROL_OUT)->open = slot_of(USB_CONTROL_IN)->open = true;
}

void chip_usb_address(uint8_t address) {
  rule(address < 128, "an address of 7 bits");
  if (controller.reports_status)
    controller.address = address;
}

void chip_usb_configure(bool configured) {
  for (unsigned i = 2; i < SLOTS; i++) {
    controller.slots[i] = (struct slot){.address = addresses[i]};
    controller.slots[i].open = configured;
  }
}

static struct slot *give(uint8_t endpoint, const void *buffer) {
  struct slot *slot = slot_of(endpoint);
  rule(slot->open, "only open endpoints are given something");
  rule(!slot->given, "one packet at a time");
  rule((uintptr_t)buffer % 4 == 0, "buffers are aligned");
  slot->given = true;
  return slot;
}

void chip_usb_send(uint8_t endpoint, const uint8_t *data, uint32_t size) {
  rule(endpoint & 0x80, "what is sent goes IN");
  rule(size <= USB_PACKET, "a packet has 64 bytes at most");
  struct slot *slot = give(endpoint, data);
  slot->out = data;
  slot->size = size;
  memcpy(slot->copy, data, size);
}

void chip_usb_receive(uint8_t endpoint, uint8_t *data) {
  rule(!(endpoint & 0x80), "what is received comes OUT");
  give(endpoint, data)->in = data;
  memset(data, 0xa5, USB_PACKET); /* all of it is the controller's */
}

void chip_usb_status(bool in) {
  controller.status_due = true;
  controller.status_in = in;
  if (!controller.reports_status)
    usb_status_ended();
}

void chip_usb_stall(uint8_t endpoint, bool stalled) {
  if (endpoint == USB_CONTROL_OUT) {
    rule(stalled, "only SETUP ends a stall of the control endpoint");
    controller.stalled = true;
    return;
  }
  struct slot *slot = slot_of(endpoint);
  rule(slot->open, "only open endpoints are halted");
  slot->halted = stalled;
  if (!stalled)
    slot->toggle = false;
}

void chip_usb_touched(void) {
  controller.touches++;
}

void chip_usb_poll(void) {
  controller.now_us++;
  if (controller.poll)
    controller.poll();
}

/* -- and the rest of chip.h and lane.h -- */

static unsigned locked;

uint32_t chip_lock(void) {
  return locked++;
}

void chip_unlock(uint32_t was) {
  locked = was;
  if (!locked && controller.meanwhile)
    controller.meanwhile();
}

void chip_sleep(void) {
}

void lane_sleep(void) {
  rule(locked, "sleep with interrupts locked out");
  controller.now_us += controller.sleep_us;
}

uint32_t chip_ticks(void) {
  return (uint32_t)controller.now_us;
}

void chip_wake(uint32_t us) {
  (void)us;
}

bool chip_uart_waiting(void) {
  return uart.in_size != 0;
}

void chip_uart_drop(void) {
  uart.in_size = 0;
}

uint32_t chip_uart_receive(uint8_t *data, uint32_t size) {
  const uint32_t count = size < uart.in_size ? size : uart.in_size;
  memcpy(data, uart.in, count);
  uart.in_size -= count;
  memmove(uart.in, uart.in + count, uart.in_size);
  return count;
}

void chip_uart_send(const uint8_t *data, uint32_t size) {
  rule(uart.out_size + size <= sizeof uart.out, "the test's room is enough");
  memcpy(uart.out + uart.out_size, data, size);
  uart.out_size += size;
}

void chip_last_words(const char *text) {
  chip_uart_send((const uint8_t *)text, (uint32_t)strlen(text));
}
