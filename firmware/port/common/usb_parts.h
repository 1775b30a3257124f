/* usb_parts.h - what the two halves of the USB device tell each other: control
 * transfers (usb.c), and the serial port's bytes (usb_serial.c). */
#ifndef POET_USB_PARTS_H
#define POET_USB_PARTS_H

#include "usb.h"

/* The data endpoints have been opened anew, or closed. */
void usb_serial_configure(bool configured);
/* A program has opened the port, or closed it. */
void usb_serial_open(bool open);
bool usb_serial_is_open(void);

void usb_serial_sent(void);
void usb_serial_received(uint32_t size);

#endif
