/*
 * link.c - the choice between the two serial ports, UART and USB.
 *
 * State: `port`, the port that the host uses, and the USB session in which it
 * was chosen. Both change only in link_waiting, which the thread calls before
 * it reads. So a reply goes to the port from which its request came, unless
 * `port` has changed since.
 */
#include "link.h"

#include "chip.h"
#include "usb.h"

static struct {
  enum { NO_PORT, UART, USB } port;
  uint32_t session;
} link;

bool link_waiting(void) {
  uint8_t dropped;
  if (link.session != usb_session()) {
    link.session = usb_session();
    link.port = NO_PORT;
  }
  if (link.port == NO_PORT ||
      (link.port == USB && usb_is_suspended() && chip_uart_waiting())) {
    link.port = chip_uart_waiting() ? UART : usb_waiting() ? USB : NO_PORT;
  }
  if (link.port == USB) {
    chip_uart_drop();
  }
  while (link.port == UART && usb_waiting()) {
    usb_receive(&dropped, 1);
  }
  return link.port == USB ? usb_waiting() : chip_uart_waiting();
}

uint32_t link_receive(uint8_t *data, uint32_t size) {
  link_waiting();
  return link.port == USB    ? usb_receive(data, size)
         : link.port == UART ? chip_uart_receive(data, size)
                             : 0;
}

void link_send(const uint8_t *data, uint32_t size) {
  if (link.port == USB) {
    usb_send(data, size);
  } else {
    chip_uart_send(data, size);
  }
}

void link_last_words(const char *text) {
  chip_last_words(text);
  usb_last_words(text);
}
