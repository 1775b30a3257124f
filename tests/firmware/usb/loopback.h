/* The firmware's USB device on this computer: a controller without registers,
   whose rules are those of usb.h. A broken rule ends the process. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "usb.h"

enum { SLOTS = 5 };

/* What an endpoint has been given. */
struct slot {
  uint8_t address;
  bool open, halted, given, toggle;
  const uint8_t *out; /* to send, */
  uint8_t copy[USB_PACKET];
  uint8_t *in; /* or to receive into */
  uint32_t size;
};

extern struct controller {
  struct slot slots[SLOTS];
  uint8_t address;
  unsigned touches, attached;
  bool status_due, status_in, stalled; /* of the control endpoint */
  bool reports_status;                 /* else it takes SET_ADDRESS itself */
  uint64_t now_us;
  uint32_t sleep_us; /* how long a sleep is */
  /* Called while the firmware sleeps, and when it lets interrupts in. */
  void (*meanwhile)(void);
  void (*poll)(void);
} controller;

void rule(bool kept, const char *what);
struct slot *slot_of(uint8_t endpoint);
void give_up(struct slot *slot);
/* The host has fetched what the endpoint was given. */
void fetched(struct slot *slot);
/* The host has sent a packet that the endpoint waits for. */
void delivered(struct slot *slot, const uint8_t *data, uint32_t size);
void status_taken(void);

/* The UART next to it. */
extern struct uart {
  uint8_t in[256], out[4096];
  uint32_t in_size, out_size;
} uart;
