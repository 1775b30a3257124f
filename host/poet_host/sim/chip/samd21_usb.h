/* The USB controller (section 32): what its two files share. */
#pragma once

#include "samd21.h"
#include "usb_bus.h"

/* Banks of an endpoint, and types of them (EPCFG). */
enum { TAKE, SEND, TYPE_CONTROL = 1, TYPE_ISOCHRONOUS, TYPE_DUAL_BANK = 5 };

/* Of the bank that takes; those of the one that sends are shifted by SEND. */
enum {
  STATUS_DTGL = 1, /* EPSTATUS */
  STATUS_STALLRQ = 0x10,
  STATUS_BKRDY = 0x40,
  FLAG_TRCPT = 1, /* EPINTFLAG */
  FLAG_TRFAIL = 4,
  FLAG_RXSTP = 0x10,
  FLAG_STALL = 0x20,
  DADD_ADDEN = 0x80,
  FSM_ON = 2, /* FSMSTATUS */
};

void samd21_usb_stop(struct samd21_usb *usb, const char *text);
/* Interrupt or not, now that a flag or its enabling has changed. */
void samd21_usb_raise(struct samd21_usb *usb);
/* Can it be seen on the bus? */
bool samd21_usb_attached(const struct samd21_usb *usb);

/* -- samd21_usb_bus.c -- */
void samd21_usb_connect(struct samd21_usb *usb);
/* Nobody drives the wires, from now on. */
void samd21_usb_fall_idle(struct samd21_usb *usb);
