/* samd21_usb.h - the interface between the two files of the USB controller's
   model (section 32). */
#pragma once

#include "samd21.h"
#include "usb_bus.h"

/* Banks of an endpoint, and their types (EPCFG). */
enum { TAKE, SEND, TYPE_CONTROL = 1, TYPE_ISOCHRONOUS, TYPE_DUAL_BANK = 5 };

/* Bits of bank TAKE; those of bank SEND are shifted left by SEND. */
enum {
  STATUS_DTGL = 1, /* EPSTATUS */
  STATUS_STALLRQ = 0x10,
  STATUS_BKRDY = 0x40,
  FLAG_TRCPT = 1, /* EPINTFLAG */
  FLAG_TRFAIL = 4,
  FLAG_RXSTP = 0x10,
  FLAG_STALL = 0x20,
  DADD_ADDEN = 0x80,
  FSM_OFF = 1, /* FSMSTATUS */
  FSM_ON = 2,
};

void samd21_usb_stop(struct samd21_usb *usb, const char *text);
/* Update the interrupt request after a flag or its enabling has changed. */
void samd21_usb_raise(void *usb);
/* Return true if the device is connected to the bus. */
bool samd21_usb_attached(const struct samd21_usb *usb);

/* -- samd21_usb_bus.c -- */
void samd21_usb_connect(struct samd21_usb *usb);
/* Set the bus idle from now on. */
void samd21_usb_fall_idle(struct samd21_usb *usb);
