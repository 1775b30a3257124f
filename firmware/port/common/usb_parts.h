/* usb_parts.h - the interface between the parts of the USB device: control
 * transfers (usb.c), descriptors (usb_descriptors.c), and the bytes of the
 * serial port (usb_serial.c). */
#ifndef POET_USB_PARTS_H
#define POET_USB_PARTS_H

#include "usb.h"

enum {
  USB_DEVICE = 1, /* types of descriptors */
  USB_CONFIGURATION,
  USB_STRING,

  USB_COMMUNICATION = 0, /* interfaces */
  USB_DATA,
  USB_INTERFACES,

  USB_MANUFACTURER_TEXT = 1,
  USB_PRODUCT_TEXT,
  USB_SERIAL_TEXT,
  USB_TEXTS,
};

extern const uint8_t usb_device[18], usb_configuration[67], usb_languages[4];

/* The data endpoints have been opened, opened again, or closed. */
void usb_serial_configure(bool configured);
/* A program on the host has opened the port, or closed it. */
void usb_serial_open(bool open);
bool usb_serial_is_open(void);

/* usb_sent and usb_received call these functions, for the data endpoints. */
void usb_serial_sent(void);
void usb_serial_received(uint32_t size);

#endif
