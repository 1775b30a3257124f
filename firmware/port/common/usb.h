/*
 * usb.h - a USB 2.0 full-speed device with one serial port (CDC 1.2, abstract
 * control model), and what it needs from a chip's device controller.
 *
 * Stages of a control transfer:
 *
 *   SETUP --> usb_setup --> [chip_usb_send(0x80) --> usb_sent(0x80)]...     IN
 *                           [chip_usb_receive(0) --> usb_received(0)]...    OUT
 *                           chip_usb_status --> usb_status_ended
 *         or                chip_usb_stall(0, true), until the next SETUP
 *
 * The chip calls the functions usb_* below from one interrupt level, that of
 * the card (chip.h). So these calls never interrupt each other, and never occur
 * while the thread holds chip_lock. chip_usb_* are called at that level, or
 * from the thread with interrupts locked out.
 */
#ifndef POET_USB_H
#define POET_USB_H

#include <stdbool.h>
#include <stdint.h>

/* A test id of pid.codes, which anybody may use for devices that are not
 * distributed. Hosts therefore identify the device by its names. To sell boards
 * with this firmware, request your own id from pid.codes. Each name has at most
 * 31 ASCII characters. */
#define USB_VENDOR_ID 0x1209
#define USB_PRODUCT_ID 0x0001
#define USB_MANUFACTURER "poet-host"

/* Endpoint addresses; bit 0x80 means IN, to the host. */
enum {
  USB_PACKET = 64, /* packet size in bytes, for all endpoints except NOTICE */
  USB_NOTICE_PACKET = 16,
  USB_CONTROL_OUT = 0x00,
  USB_CONTROL_IN = 0x80,
  /* interrupt endpoint: required by CDC, but never used */
  USB_NOTICE_IN = 0x81,
  USB_DATA_OUT = 0x02, /* bulk */
  USB_DATA_IN = 0x82,  /* bulk */
};

/* -- the serial port, for the thread -- */

/* Make the device visible to a host. The strings must stay valid. */
void usb_start(const char *product, const char *serial);
/* Return how many times, modulo 256, a program on the host has opened or closed
 * the port (DTR). A bus reset and a pulled cable close it too. A closed port
 * drops received bytes and sends nothing. */
uint32_t usb_session(void);
/* Return true if the bus is suspended: the host sleeps, or the cable is out. */
bool usb_is_suspended(void);
/* Return true if the host has sent bytes that usb_receive has not returned
 * yet. */
bool usb_waiting(void);
/* Take at most `size` received bytes, none after a zero, and return their
 * number. */
uint32_t usb_receive(uint8_t *data, uint32_t size);
/* Send bytes. Return when the bytes are on their way, or when the host has
 * fetched nothing for a second. Return at once if the port is closed. */
void usb_send(const uint8_t *data, uint32_t size);
/* Send a text after a fault, without the use of interrupts. Wait until the host
 * has received the text. */
void usb_last_words(const char *text);

/* -- called by the chip -- */

/* The bus was reset, or the cable is out. The device has address 0, and only
 * the control endpoint is open. All buffers passed to the chip are free. */
void usb_reset(void);
/* A SETUP packet has arrived. If another control transfer is unfinished, it
 * ends, and the buffers that were passed to endpoint 0 are free. */
void usb_setup(const uint8_t packet[8]);
/* The packet passed to chip_usb_send has reached the host. */
void usb_sent(uint8_t endpoint);
/* A packet has arrived in the buffer passed to chip_usb_receive. If the host
 * ends a control read early, the chip does not call this function, and answers
 * NAK until the next SETUP. */
void usb_received(uint8_t endpoint, uint32_t size);
/* The status stage is complete. If the controller does not report this event,
 * chip_usb_status calls the function. */
void usb_status_ended(void);
/* The bus has been idle for 3 ms, or is active again. */
void usb_suspend(bool suspended);

/* -- provided by the chip -- */

/* Connect the pull-up. This function is called once, when clocks and interrupt
 * are ready. A chip that detects the cable connects the pull-up whenever the
 * cable is in. */
void chip_usb_attach(void);
/* Use this address from now on. The caller is usb_status_ended. If the hardware
 * itself executes SET_ADDRESS, this function does nothing. */
void chip_usb_address(uint8_t address);
/* If `configured`, open the endpoints NOTICE, DATA_OUT and DATA_IN: not halted,
 * without a buffer, and with DATA0 as the first packet. Otherwise close them.
 * In both cases, buffers that were passed to these endpoints earlier are free.
 */
void chip_usb_configure(bool configured);
/* Send a packet of 0 to USB_PACKET bytes. `data` must be in RAM, aligned to 4,
 * and must not change until the call of usb_sent. Each endpoint sends only one
 * packet at a time. */
void chip_usb_send(uint8_t endpoint, const uint8_t *data, uint32_t size);
/* Receive one packet into `data`: USB_PACKET bytes, aligned to 4. Without a
 * buffer the endpoint answers NAK. Endpoint 0 may drop all bytes after the
 * eighth. */
void chip_usb_receive(uint8_t endpoint, uint8_t *data);
/* Run the status stage of a control transfer: send an empty packet to the host
 * if `in`, otherwise receive one from the host. */
void chip_usb_status(bool in);
/* On endpoint 0, answer STALL until the next SETUP, at which the hardware ends
 * the STALL. On other endpoints, answer STALL or, if `stalled` is false, end
 * the STALL and continue with DATA0. Buffers passed to the endpoint stay in
 * use. */
void chip_usb_stall(uint8_t endpoint, bool stalled);
/* Restart into the boot loader, because a program has opened the port with 1200
 * baud and closed it. The caller is usb_status_ended. The function need not
 * return. On a chip without a boot loader, it does nothing. */
void chip_usb_touched(void);
/* Do the work of the USB interrupt once. This function is called after a fault,
 * when interrupts are off. */
void chip_usb_poll(void);

#endif
