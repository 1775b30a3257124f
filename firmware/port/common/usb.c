/*
 * usb.c - control transfers of the USB device: requests of USB 2.0 chapter 9,
 * and of the CDC PSTN subclass 1.2, section 6.3.
 *
 * State: struct usb. `configuration`, `halted` and `line_coding` are valid
 * until the next bus reset. `stage`, `data`, `left`, `wants_more` and `full`
 * describe the control transfer in progress; a new SETUP packet may end this
 * transfer at any time.
 *
 * Order: `address`, the new address, and `touched`, a request to restart, take
 * effect only after the status stage. During that stage, the host still uses
 * the old address. The stage also reports to the host that its request has
 * succeeded, so it must be complete before the board restarts.
 *
 * All functions run at the interrupt level of the controller, except usb_start.
 */
#include "usb.h"

#include <string.h>

#include "usb_parts.h"

enum {
  HALT = 0, /* the feature of an endpoint */
  DTR = 1,
  LINE_CODING_SIZE = 7, /* bytes: baud rate u32, stop bits, parity, data bits */
  TOUCH_BAUD = 1200,
  TO_HOST = 0x80, /* bit of bmRequestType */
};

/* Requests: bmRequestType and bRequest, combined into one number. */
enum {
  GET_STATUS_DEVICE = 0x8000,
  GET_STATUS_INTERFACE = 0x8100,
  GET_STATUS_ENDPOINT = 0x8200,
  CLEAR_FEATURE_ENDPOINT = 0x0201,
  SET_FEATURE_ENDPOINT = 0x0203,
  SET_ADDRESS = 0x0005,
  GET_DESCRIPTOR = 0x8006,
  GET_CONFIGURATION = 0x8008,
  SET_CONFIGURATION = 0x0009,
  GET_INTERFACE = 0x810a,
  SET_INTERFACE = 0x010b,
  SET_LINE_CODING = 0x2120,
  GET_LINE_CODING = 0xa121,
  SET_CONTROL_LINE_STATE = 0x2122,
};

enum stage { NOTHING, DATA_TO_HOST, DATA_FROM_HOST, STATUS_STAGE };

static struct {
  _Alignas(4) uint8_t packet[USB_PACKET];
  _Alignas(4) uint8_t line_coding[LINE_CODING_SIZE];
  const char *texts[USB_TEXTS];
  const uint8_t *data; /* next byte for the host */
  uint16_t left;       /* bytes from there on */
  /* the host has requested more bytes than the answer has: if the last packet
   * is full, an empty packet must follow */
  bool wants_more;
  bool full; /* true: the packet being sent has USB_PACKET bytes */
  enum stage stage;
  uint8_t configuration; /* 0: not configured */
  uint8_t halted;        /* endpoints, see endpoint_bit */
  /* address to use after the status stage, with bit 7 set; 0: the address
   * stays */
  uint8_t address;
  /* true: restart into the boot loader after the status stage */
  bool touched;
} usb;

/* A SETUP packet. `what` is bmRequestType << 8 | bRequest. */
struct request {
  uint16_t what, value, index, length;
};

/* Return the bit in `halted` that belongs to an endpoint. Return 0 if the
 * endpoint is unknown. */
static uint8_t endpoint_bit(uint16_t address) {
  return address == USB_NOTICE_IN  ? 1
         : address == USB_DATA_OUT ? 2
         : address == USB_DATA_IN  ? 4
                                   : 0;
}

/* Set the answer to a request, and return the size of the answer. The size 0
 * refuses the request. */
static uint16_t answer(const void *data, uint16_t size) {
  usb.data = data;
  return size;
}

static uint16_t answer_byte(uint16_t value, uint16_t size) {
  usb.packet[0] = (uint8_t)value;
  usb.packet[1] = 0;
  return answer(usb.packet, size);
}

static uint16_t descriptor(uint16_t type_index) {
  const uint8_t index = (uint8_t)type_index;
  const uint8_t type = (uint8_t)(type_index >> 8);
  if (type == USB_STRING && index && index < USB_TEXTS) {
    const char *text = usb.texts[index];
    uint8_t size = 2;
    for (; *text && size < USB_PACKET; size += 2) {
      usb.packet[size] = (uint8_t)*text++;
      usb.packet[size + 1] = 0;
    }
    usb.packet[0] = size;
    usb.packet[1] = USB_STRING;
    return answer(usb.packet, size);
  }
  if (index) {
    return 0;
  }
  return type == USB_DEVICE ? answer(usb_device, sizeof usb_device)
         : type == USB_CONFIGURATION
             ? answer(usb_configuration, sizeof usb_configuration)
         : type == USB_STRING ? answer(usb_languages, sizeof usb_languages)
                              : 0;
}

/* Answer a request for data. Return the size of the answer, or 0 if the request
 * is unknown or not allowed in this state. */
static uint16_t get(const struct request *r) {
  const bool interface = usb.configuration && r->index < USB_INTERFACES;
  switch (r->what) {
  case GET_STATUS_DEVICE: /* status: bus-powered, without remote wake-up */
    return answer_byte(0, 2);
  case GET_STATUS_INTERFACE:
    return interface ? answer_byte(0, 2) : 0;
  case GET_STATUS_ENDPOINT: {
    const uint8_t bit = endpoint_bit(r->index);
    return !(r->index & 0x7f) || (usb.configuration && bit)
               ? answer_byte((usb.halted & bit) != 0, 2)
               : 0;
  }
  case GET_DESCRIPTOR:
    return descriptor(r->value);
  case GET_CONFIGURATION:
    return answer_byte(usb.configuration, 1);
  case GET_INTERFACE:
    return interface ? answer_byte(0, 1) : 0;
  case GET_LINE_CODING:
    return usb.configuration ? answer(usb.line_coding, LINE_CODING_SIZE) : 0;
  default:
    return 0;
  }
}

static void open_endpoints(bool open) {
  usb.halted = 0;
  chip_usb_configure(open);
  usb_serial_configure(open);
}

static bool set_halt(const struct request *r, bool halted) {
  const uint8_t bit = endpoint_bit(r->index);
  if (r->value != HALT) {
    return false;
  }
  if (!(r->index & 0x7f)) { /* the control endpoint is never halted */
    return !halted;
  }
  if (!bit || !usb.configuration) {
    return false;
  }
  usb.halted = (uint8_t)(halted ? usb.halted | bit : usb.halted & ~bit);
  chip_usb_stall((uint8_t)r->index, halted);
  return true;
}

static bool set_control_lines(uint16_t lines) {
  uint32_t baud;
  memcpy(&baud, usb.line_coding, sizeof baud);
  const bool open = (lines & DTR) != 0;
  usb.touched = !open && usb_serial_is_open() && baud == TOUCH_BAUD;
  usb_serial_open(open);
  return true;
}

/* Execute a request without data. Return false to refuse it. */
static bool set(const struct request *r) {
  const bool interface = usb.configuration && r->index < USB_INTERFACES;
  switch (r->what) {
  case CLEAR_FEATURE_ENDPOINT:
    return set_halt(r, false);
  case SET_FEATURE_ENDPOINT:
    return set_halt(r, true);
  case SET_ADDRESS:
    usb.address = (uint8_t)(r->value | 0x80);
    return r->value < 128;
  case SET_CONFIGURATION:
    if (r->value > 1) {
      return false;
    }
    usb.configuration = (uint8_t)r->value;
    usb_serial_open(false);
    open_endpoints(usb.configuration != 0);
    return true;
  case SET_INTERFACE:
    if (!interface || r->value) {
      return false;
    }
    if (r->index == USB_DATA) {
      open_endpoints(true);
    }
    return true;
  case SET_CONTROL_LINE_STATE:
    return interface && set_control_lines(r->value);
  default:
    return false;
  }
}

/* Refuse the request. */
static void stall(void) {
  usb.stage = NOTHING;
  chip_usb_stall(USB_CONTROL_OUT, true);
}

/* Start the status stage. usb.stage is set first, because chip_usb_status may
 * call usb_status_ended itself. */
static void end(bool in) {
  usb.stage = STATUS_STAGE;
  chip_usb_status(in);
}

static void send_packet(void) {
  const uint16_t size = usb.left < USB_PACKET ? usb.left : USB_PACKET;
  if (usb.data != usb.packet) {
    memcpy(usb.packet, usb.data, size);
  }
  usb.data += size;
  usb.left = (uint16_t)(usb.left - size);
  usb.full = size == USB_PACKET;
  chip_usb_send(USB_CONTROL_IN, usb.packet, size);
}

void usb_setup(const uint8_t packet[8]) {
  struct request r;
  memcpy(&r, packet, sizeof r);
  r.what = (uint16_t)(r.what << 8 | r.what >> 8);
  /* A SETUP packet ends an unfinished control transfer: USB 2.0, 5.5.5. */
  usb.stage = NOTHING;
  usb.address = 0;
  usb.touched = false;
  if (packet[0] & TO_HOST) {
    const uint16_t size = get(&r);
    if (!size) {
      stall();
    } else if (!r.length) {
      end(true);
    } else {
      usb.left = size < r.length ? size : r.length;
      usb.wants_more = size < r.length;
      usb.stage = DATA_TO_HOST;
      send_packet();
    }
  } else if (r.what == SET_LINE_CODING && usb.configuration &&
             r.length == LINE_CODING_SIZE) {
    usb.stage = DATA_FROM_HOST;
    chip_usb_receive(USB_CONTROL_OUT, usb.packet);
  } else if (!r.length && set(&r)) {
    end(true);
  } else {
    stall();
  }
}

static void control_sent(void) {
  if (usb.stage != DATA_TO_HOST) {
    return;
  }
  if (usb.left || (usb.full && usb.wants_more)) {
    send_packet();
  } else {
    end(false);
  }
}

static void control_received(uint32_t size) {
  if (usb.stage != DATA_FROM_HOST) {
    return;
  }
  if (size == LINE_CODING_SIZE) {
    memcpy(usb.line_coding, usb.packet, LINE_CODING_SIZE);
    end(true);
  } else {
    stall();
  }
}

void usb_sent(uint8_t endpoint) {
  if (endpoint == USB_CONTROL_IN) {
    control_sent();
  } else if (endpoint == USB_DATA_IN) {
    usb_serial_sent();
  }
}

void usb_received(uint8_t endpoint, uint32_t size) {
  if (endpoint == USB_CONTROL_OUT) {
    control_received(size);
  } else {
    usb_serial_received(size);
  }
}

void usb_status_ended(void) {
  if (usb.stage != STATUS_STAGE) {
    return;
  }
  usb.stage = NOTHING;
  if (usb.address) {
    chip_usb_address(usb.address & 0x7f);
  }
  if (usb.touched) {
    chip_usb_touched();
  }
}

void usb_reset(void) {
  static const uint8_t initial[LINE_CODING_SIZE] = {0x00, 0xc2, 0x01, 0,
                                                    0,    0,    8}; /* 115200 */
  memcpy(usb.line_coding, initial, sizeof initial);
  usb.stage = NOTHING;
  usb.configuration = usb.halted = 0;
  usb_serial_configure(false);
  usb_serial_open(false);
}

void usb_start(const char *product, const char *serial) {
  usb.texts[USB_MANUFACTURER_TEXT] = USB_MANUFACTURER;
  usb.texts[USB_PRODUCT_TEXT] = product;
  usb.texts[USB_SERIAL_TEXT] = serial;
  usb_reset();
  chip_usb_attach();
}
