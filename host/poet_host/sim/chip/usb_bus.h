/* usb_bus.h - a full-speed bus between a simulated host (usb_host.c) and a
   chip's device controller, packet by packet.

   Transactions take bus time, one after another. The functions of a device are
   called at the tick at which the transaction ends, except `in`: a device must
   answer an IN within 6.5 bit times after its token (USB 2.0, 7.1.18). A host
   whose transactions were all answered NAK waits for usb_bus_ready and needs no
   events meanwhile, so a program without work can sleep for ever. Frame numbers
   follow from the time (usb_bus_frame); controllers get no SOF packets. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct machine;
struct usb_bus;

/* SILENCE: the device does not answer, because the address is wrong, the
   endpoint is closed, or the pull-up is off. */
enum usb_answer { USB_ACK, USB_NAK, USB_STALL, USB_SILENCE };

/* A device controller. Endpoints are numbers, 0 to 15. Toggles are false for
   DATA0, true for DATA1. */
struct usb_device {
  void *owner;
  /* The 5 V from the host have come or gone: the cable is in, or out. */
  void (*power)(void *owner, bool on);
  /* The host has ended a reset of the bus. */
  void (*reset)(void *owner);
  /* The bus has been idle for 3 ms; the host has resumed it. */
  void (*suspend)(void *owner);
  void (*resume)(void *owner);
  /* SETUP cannot be refused: ACK or SILENCE. */
  enum usb_answer (*setup)(void *owner, unsigned address, unsigned endpoint,
                           const uint8_t packet[8]);
  /* ACK also for a repetition, which the toggle shows: the controller drops it.
   */
  enum usb_answer (*out)(void *owner, unsigned address, unsigned endpoint,
                         bool toggle, const uint8_t *data, unsigned size);
  /* Called when the token has ended. ACK: the device sends this packet; `data`
     is a buffer of 64 bytes. `sent` is called when the host has acknowledged
     the packet. */
  enum usb_answer (*in)(void *owner, unsigned address, unsigned endpoint,
                        bool *toggle, uint8_t *data, unsigned *size);
  void (*sent)(void *owner, unsigned endpoint);
};

/* -- for controllers -- */

/* Create the machine's bus and its host; the cable is not plugged in yet.
   Copies `device`; machine_free frees the bus. */
struct usb_bus *usb_bus_create(struct machine *m,
                               const struct usb_device *device);
/* The device connects to the bus, or leaves it. */
void usb_bus_pull_up(struct usb_bus *bus, bool on);
/* An endpoint has a new buffer or has been stalled: repeat the transactions
   that were answered NAK. */
void usb_bus_ready(struct usb_bus *bus);
/* Number of the current frame (11 bits). */
unsigned usb_bus_frame(const struct usb_bus *bus);

/* -- for the machine -- */
void usb_bus_free(struct usb_bus *bus);
