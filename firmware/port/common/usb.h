/*
 * usb.h - a USB 2.0 full-speed device with one serial port (CDC 1.2, abstract
 * control model), and what it wants from a chip's device controller.
 *
 * A control transfer passes through the controller in stages:
 *
 *   SETUP --> usb_setup --> [chip_usb_send(0x80) --> usb_sent(0x80)]...     IN
 *                           [chip_usb_receive(0) --> usb_received(0)]...    OUT
 *                           chip_usb_status --> usb_status_ended
 *         or                chip_usb_stall(0, true), until the next SETUP
 *
 * The controller reports from one interrupt level, that of the card (chip.h):
 * never while it reports already, and never while the thread has chip_lock.
 * chip_usb_* are called there, or from the thread with interrupts locked out.
 */
#ifndef POET_USB_H
#define POET_USB_H

#include <stdbool.h>
#include <stdint.h>

/* A test id of pid.codes, for devices that are not passed on: everybody may use
 * it, so that it is the names that tell whose device it is. Whoever sells
 * boards with this firmware asks pid.codes for an id of their own. Each name is
 * at most 31 characters of ASCII. */
#define USB_VENDOR_ID 0x1209
#define USB_PRODUCT_ID 0x0001
#define USB_MANUFACTURER "poet-host"

/* Endpoint addresses: 0x80 is IN, to the host. */
enum {
  USB_PACKET = 64, /* most bytes of a packet, of every endpoint but NOTICE */
  USB_NOTICE_PACKET = 16,
  USB_CONTROL_OUT = 0x00,
  USB_CONTROL_IN = 0x80,
  USB_NOTICE_IN = 0x81, /* interrupt; there is never anything to say */
  USB_DATA_OUT = 0x02,  /* bulk */
  USB_DATA_IN = 0x82,   /* bulk */
};

/* -- the serial port, for the thread -- */

/* Become visible to a host. Both names stay the caller's. */
void usb_start(const char *product, const char *serial);
/* Counts, in 8 bits, how often a program has opened the port (the host sets
 * DTR), or closed it: a host that resets the bus or leaves has closed it too.
 * Closed, it takes nothing and gives nothing. */
uint32_t usb_session(void);
/* Is the host asleep, or its cable out? */
bool usb_is_suspended(void);
bool usb_waiting(void);
/* Bytes that came in, at most `size` of them. */
uint32_t usb_receive(uint8_t *data, uint32_t size);
/* Returns when the bytes are on their way, or at once if the port is not open,
 * or if the host fetches nothing for a second. */
void usb_send(const uint8_t *data, uint32_t size);
/* After a fault: send without interrupts, wait until it is sent. */
void usb_last_words(const char *text);

/* -- what the controller reports -- */

/* The bus was reset, or the cable is out: address 0, and no endpoint open but
 * the control endpoint. Whatever was given to the controller is given up. */
void usb_reset(void);
/* Also while an earlier request is not through: that one is forgotten, and
 * whatever endpoint 0 was given is given up. */
void usb_setup(const uint8_t packet[8]);
/* What chip_usb_send was given has reached the host. */
void usb_sent(uint8_t endpoint);
/* A packet has come into the buffer that chip_usb_receive was given. A control
 * read that the host ends early is not reported: it gets NAK until the next
 * SETUP. */
void usb_received(uint8_t endpoint, uint32_t size);
/* The host has taken part in the status stage. A controller that does not
 * learn of it calls this from chip_usb_status. */
void usb_status_ended(void);
/* The bus has been idle for 3 ms, or is used again. */
void usb_suspend(bool suspended);

/* -- what a chip does -- */

/* Connect the pull-up: once, with clocks and interrupt ready (chip_start). A
 * chip that sees the cable does so whenever it is in. */
void chip_usb_attach(void);
/* Answer to this address from now on; called from usb_status_ended. Nothing to
 * do where the hardware takes SET_ADDRESS itself. */
void chip_usb_address(uint8_t address);
/* A configuration is set: open NOTICE, DATA_OUT and DATA_IN, each with DATA0
 * next, not halted, with nothing given. Or it is taken back: close them.
 * Whatever was given to them is given up, also if they were open. */
void chip_usb_configure(bool configured);
/* Send a packet of 0 to USB_PACKET bytes, aligned to 4, in RAM, that stay as
 * they are until usb_sent: only one at a time for an endpoint. */
void chip_usb_send(uint8_t endpoint, const uint8_t *data, uint32_t size);
/* Take one packet into `data`: USB_PACKET bytes, aligned to 4. Until then the
 * endpoint answers NAK. */
void chip_usb_receive(uint8_t endpoint, uint8_t *data);
/* Status stage of a control transfer: an empty packet to the host (`in`), or
 * from it. */
void chip_usb_status(bool in);
/* Endpoint 0: stall until the next SETUP, which clears it without us. Others:
 * answer STALL, or no more and with DATA0 next. What an endpoint was given
 * stays given. */
void chip_usb_stall(uint8_t endpoint, bool stalled);
/* The port was opened with 1200 baud and closed: the sign to enter the boot
 * loader, called from usb_status_ended. Need not return; does nothing where
 * there is no boot loader. */
void chip_usb_touched(void);
/* Do what the interrupt would do, now that interrupts are off after a fault. */
void chip_usb_poll(void);

#endif
