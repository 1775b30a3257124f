/*
 * usb_descriptors.c - the descriptors that a host reads: USB 2.0 section 9.6,
 * Communications Devices 1.2 section 5.2.3, PSTN devices 1.2 section 5.3. They
 * are constants in flash; the strings are in usb.c.
 */
#include "usb_parts.h"

#define WORD(word) (word) & 0xff, (word) >> 8

enum {
  INTERFACE = 4, /* descriptors */
  ENDPOINT = 5,
  CLASS_INTERFACE = 0x24,
  HEADER = 0, /* of the class's interfaces */
  CALL_MANAGEMENT = 1,
  ABSTRACT_CONTROL = 2,
  UNION = 6,

  COMMUNICATIONS = 2, /* classes */
  ABSTRACT_MODEL = 2,
  CDC_DATA = 10,
  BULK = 2,
  INTERRUPT = 3,

  POWERED_BY_BUS = 0x80,
  CURRENT_2MA = 250, /* 500 mA: enough to write to a card */
  LINE_CODING_AND_STATE = 2,
};

/* clang-format off */
const uint8_t usb_device[18] = {
    18, USB_DEVICE, WORD(0x0200), COMMUNICATIONS, 0, 0, USB_PACKET,
    WORD(USB_VENDOR_ID), WORD(USB_PRODUCT_ID), WORD(0x0100),
    USB_MANUFACTURER_TEXT, USB_PRODUCT_TEXT, USB_SERIAL_TEXT, 1,
};

const uint8_t usb_configuration[67] = {
    9, USB_CONFIGURATION, WORD(sizeof usb_configuration), USB_INTERFACES, 1, 0,
        POWERED_BY_BUS, CURRENT_2MA,
    9, INTERFACE, USB_COMMUNICATION, 0, 1, COMMUNICATIONS, ABSTRACT_MODEL, 0, 0,
    5, CLASS_INTERFACE, HEADER, WORD(0x0110),
    5, CLASS_INTERFACE, CALL_MANAGEMENT, 0, USB_DATA,
    4, CLASS_INTERFACE, ABSTRACT_CONTROL, LINE_CODING_AND_STATE,
    5, CLASS_INTERFACE, UNION, USB_COMMUNICATION, USB_DATA,
    7, ENDPOINT, USB_NOTICE_IN, INTERRUPT, WORD(USB_NOTICE_PACKET), 255,
    9, INTERFACE, USB_DATA, 0, 2, CDC_DATA, 0, 0, 0,
    7, ENDPOINT, USB_DATA_OUT, BULK, WORD(USB_PACKET), 0,
    7, ENDPOINT, USB_DATA_IN, BULK, WORD(USB_PACKET), 0,
};
/* clang-format on */

const uint8_t usb_languages[4] = {4, USB_STRING, WORD(0x0409)};
