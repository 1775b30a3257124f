/* The bytes of the serial port, in packets of two buffers for each direction:
 * one is the controller's while the thread is busy with the other. */
#include <string.h>

#include "chip.h"
#include "lane.h"
#include "usb_parts.h"

enum { PATIENCE_US = 1000 * 1000 };

static struct {
  _Alignas(4) uint8_t out[2][USB_PACKET];
  _Alignas(4) uint8_t in[2][USB_PACKET];
  uint8_t out_size[2]; /* bytes in it; 0: it is empty */
  uint8_t out_at;      /* of the one that the thread reads: what is next */
  uint8_t out_read, out_given;
  uint8_t in_size; /* of the one that the thread fills */
  uint8_t in_filled;
  uint8_t session;
  bool listening; /* the controller has out[out_given] */
  bool sending;   /* and the other of in[in_filled], */
  bool was_full;  /* which does not end a transfer */
  bool configured, suspended, open;
  bool deaf; /* the host has fetched nothing for long */
} port;

/* -- from the host -- */

static void listen(void) {
  if (port.configured && !port.listening && !port.out_size[port.out_given]) {
    port.listening = true;
    chip_usb_receive(USB_DATA_OUT, port.out[port.out_given]);
  }
}

/* What comes while the port is closed is from nobody. */
void usb_serial_received(uint32_t size) {
  if (port.listening) {
    port.listening = false;
    if (port.open && size <= USB_PACKET) {
      port.out_size[port.out_given] = (uint8_t)size;
      port.out_given ^= size != 0;
    }
    listen();
  }
}

bool usb_waiting(void) {
  return port.out_size[port.out_read] != 0;
}

uint32_t usb_receive(uint8_t *data, uint32_t size) {
  const uint32_t was = chip_lock();
  const uint32_t there = (uint32_t)port.out_size[port.out_read] - port.out_at;
  const uint32_t count = there < size ? there : size;
  memcpy(data, port.out[port.out_read] + port.out_at, count);
  port.out_at = (uint8_t)(port.out_at + count);
  if (count && count == there) {
    port.out_at = port.out_size[port.out_read] = 0;
    port.out_read ^= 1;
    listen();
  }
  chip_unlock(was);
  return count;
}

/* -- to the host -- */

/* A transfer that ends with a full packet needs an empty one behind it. */
static void speak(void) {
  if (port.configured && !port.sending && (port.in_size || port.was_full)) {
    port.sending = true;
    port.was_full = port.in_size == USB_PACKET;
    chip_usb_send(USB_DATA_IN, port.in[port.in_filled], port.in_size);
    port.in_filled ^= 1;
    port.in_size = 0;
  }
}

void usb_serial_sent(void) {
  port.sending = port.deaf = false;
  speak();
}

static bool somebody_listens(void) {
  return port.open && !port.suspended && !port.deaf;
}

/* Take what there is room for, and begin to send it. */
static uint32_t fill(const void *data, uint32_t size) {
  const uint32_t room = USB_PACKET - (uint32_t)port.in_size;
  const uint32_t count = size < room ? size : room;
  memcpy(port.in[port.in_filled] + port.in_size, data, count);
  port.in_size = (uint8_t)(port.in_size + count);
  speak();
  return count;
}

/* With interrupts locked out, but for a moment after each has woken the core.
 */
static void wait_for_room(uint32_t was) {
  const uint32_t since = chip_ticks();
  chip_wake(PATIENCE_US);
  while (port.in_size == USB_PACKET && somebody_listens()) {
    lane_sleep();
    chip_unlock(was);
    chip_lock();
    port.deaf = chip_ticks() - since >= PATIENCE_US;
  }
  chip_wake(0);
}

void usb_send(const uint8_t *data, uint32_t size) {
  const uint32_t was = chip_lock();
  while (size && somebody_listens()) {
    const uint32_t count = fill(data, size);
    data += count;
    size -= count;
    if (size) {
      wait_for_room(was);
    }
  }
  chip_unlock(was);
}

void usb_last_words(const char *text) {
  const uint32_t was = chip_lock(), since = chip_ticks();
  uint32_t size = (uint32_t)strlen(text);
  while ((size || port.sending) && somebody_listens()) {
    const uint32_t count = fill(text, size);
    text += count;
    size -= count;
    chip_usb_poll();
    port.deaf = chip_ticks() - since >= PATIENCE_US;
  }
  chip_unlock(was);
}

/* -- what the host says about the port -- */

static void forget(void) {
  port.out_size[0] = port.out_size[1] = 0;
  port.out_read = port.out_given;
  port.out_at = port.in_size = 0;
  port.was_full = port.deaf = false;
}

void usb_serial_configure(bool configured) {
  forget();
  port.configured = configured;
  port.listening = port.sending = port.suspended = false;
  listen();
}

void usb_serial_open(bool open) {
  if (open != port.open) {
    port.open = open;
    port.session++;
    forget();
    listen();
  }
}

bool usb_serial_is_open(void) {
  return port.open;
}

uint32_t usb_session(void) {
  return port.session;
}

bool usb_is_suspended(void) {
  return port.suspended;
}

void usb_suspend(bool suspended) {
  port.suspended = suspended;
}
