/*
 * usb_serial.c - the bytes of the USB serial port. Each direction has two
 * packet buffers: the controller owns one while the thread uses the other.
 *
 * State: struct port. Interrupts change it, so the thread holds chip_lock while
 * it uses the buffers. `out` holds bytes from the host, and `in` holds bytes
 * for the host (USB names directions as the host sees them):
 * - The controller owns out[out_given] while `listening` is set. The thread
 *   owns out[out_read], from byte out_at on. out_size says which buffers hold
 *   bytes.
 * - The thread fills in[in_filled]. The controller owns the other `in` buffer
 *   while `sending` is set.
 *
 * Order: a buffer's size is set after its bytes are complete, and set to 0
 * after the thread has copied the bytes. Only then is the buffer passed to the
 * controller again.
 */
#include <string.h>

#include "chip.h"
#include "lane.h"
#include "usb_parts.h"

enum { PATIENCE_US = 1000 * 1000 };

static struct {
  _Alignas(4) uint8_t out[2][USB_PACKET];
  _Alignas(4) uint8_t in[2][USB_PACKET];
  uint8_t out_size[2]; /* bytes in each buffer; 0: empty */
  uint8_t out_at;      /* next byte of out[out_read] */
  uint8_t out_read;    /* buffer that the thread reads */
  uint8_t out_given;   /* buffer for the next packet from the host */
  uint8_t in_size;     /* bytes in in[in_filled] */
  uint8_t in_filled;   /* buffer that the thread fills */
  uint8_t session;     /* see usb_session */
  bool listening;      /* the controller has out[out_given] */
  bool sending;        /* the controller is sending in[in_filled ^ 1] */
  bool was_full;       /* a full packet was sent: another must follow */
  bool configured, suspended, open;
  bool timed_out; /* the host has fetched nothing for PATIENCE_US */
} port;

/* -- from the host -- */

static void receive_next(void) {
  if (port.configured && !port.listening && !port.out_size[port.out_given]) {
    port.listening = true;
    chip_usb_receive(USB_DATA_OUT, port.out[port.out_given]);
  }
}

/* Bytes that arrive while the port is closed are dropped. */
void usb_serial_received(uint32_t size) {
  if (port.listening) {
    port.listening = false;
    if (port.open && size <= USB_PACKET) {
      port.out_size[port.out_given] = (uint8_t)size;
      port.out_given ^= size != 0;
    }
    receive_next();
  }
}

bool usb_waiting(void) {
  return port.out_size[port.out_read] != 0;
}

uint32_t usb_receive(uint8_t *data, uint32_t size) {
  const uint32_t was = chip_lock();
  const uint8_t *const bytes = port.out[port.out_read] + port.out_at;
  const uint32_t there = (uint32_t)port.out_size[port.out_read] - port.out_at;
  const uint32_t most = there < size ? there : size;
  const uint8_t *const zero = memchr(bytes, 0, most);
  const uint32_t count = zero ? (uint32_t)(zero - bytes) + 1 : most;
  memcpy(data, bytes, count);
  port.out_at = (uint8_t)(port.out_at + count);
  if (count && count == there) {
    port.out_at = port.out_size[port.out_read] = 0;
    port.out_read ^= 1;
    receive_next();
  }
  chip_unlock(was);
  return count;
}

/* -- to the host -- */

/* Send the bytes that wait. If none wait after a full packet, send an empty
 * packet, which marks the end. */
static void send_filled(void) {
  if (port.configured && !port.sending && (port.in_size || port.was_full)) {
    port.sending = true;
    port.was_full = port.in_size == USB_PACKET;
    chip_usb_send(USB_DATA_IN, port.in[port.in_filled], port.in_size);
    port.in_filled ^= 1;
    port.in_size = 0;
  }
}

void usb_serial_sent(void) {
  port.sending = port.timed_out = false;
  send_filled();
}

static bool host_reads(void) {
  return port.open && !port.suspended && !port.timed_out;
}

/* Copy the bytes that fit into the buffer, and start to send them. */
static uint32_t fill(const void *data, uint32_t size) {
  const uint32_t room = USB_PACKET - (uint32_t)port.in_size;
  const uint32_t count = size < room ? size : room;
  memcpy(port.in[port.in_filled] + port.in_size, data, count);
  port.in_size = (uint8_t)(port.in_size + count);
  send_filled();
  return count;
}

/* Wait until the buffer has space. Interrupts stay locked out, except for a
 * moment each time an interrupt has woken the core. */
static void wait_for_room(uint32_t was) {
  const uint32_t since = chip_ticks();
  chip_wake(PATIENCE_US);
  while (port.in_size == USB_PACKET && host_reads()) {
    lane_sleep();
    chip_unlock(was);
    chip_lock();
    port.timed_out = chip_ticks() - since >= PATIENCE_US;
  }
  chip_wake(0);
}

void usb_send(const uint8_t *data, uint32_t size) {
  const uint32_t was = chip_lock();
  while (size && host_reads()) {
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
  while ((size || port.sending) && host_reads()) {
    const uint32_t count = fill(text, size);
    text += count;
    size -= count;
    chip_usb_poll();
    port.timed_out = chip_ticks() - since >= PATIENCE_US;
  }
  chip_unlock(was);
}

/* -- opened and closed -- */

/* Drop all bytes. A packet that is being sent stays with the controller. */
static void drop_bytes(void) {
  port.out_size[0] = port.out_size[1] = 0;
  port.out_read = port.out_given;
  port.out_at = port.in_size = 0;
  port.was_full = port.timed_out = false;
}

void usb_serial_configure(bool configured) {
  drop_bytes();
  port.configured = configured;
  port.listening = port.sending = port.suspended = false;
  receive_next();
}

void usb_serial_open(bool open) {
  if (open != port.open) {
    port.open = open;
    port.session++;
    drop_bytes();
    receive_next();
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
