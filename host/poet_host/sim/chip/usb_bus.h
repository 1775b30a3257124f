/* A full-speed bus between a simulated host (usb_host.c) and a chip's device
   controller: what goes over the two wires, packet by packet.

   Transactions take bus time: the host starts one at the end of the one
   before, so the functions of a device are called at the tick at which the
   transaction ends. Time without traffic costs nothing: a host whose every
   transaction was answered NAK stands still until usb_bus_ready, so that a
   program that sleeps with nothing to do sleeps for ever. Frame numbers are a
   matter of time (usb_bus_frame), not of events: no controller is told of
   SOFs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct machine;
struct usb_bus;

/* SILENCE: the device does not answer, for the address is not its own, or the
   endpoint is not open, or the pull-up off. */
enum usb_answer { USB_ACK, USB_NAK, USB_STALL, USB_SILENCE };

/* A controller as the bus sees it. Endpoints are numbers, 0 to 15; toggles are
   those of DATA0 (false) and DATA1. */
struct usb_device {
  void *owner;
  /* 5 V from the host: the cable is in, or out. */
  void (*power)(void *owner, bool on);
  /* The end of a reset by the host. */
  void (*reset)(void *owner);
  /* The bus has been idle for 3 ms; the host drives it again. */
  void (*suspend)(void *owner);
  void (*resume)(void *owner);
  /* SETUP cannot be refused: ACK or SILENCE. */
  enum usb_answer (*setup)(void *owner, unsigned address, unsigned endpoint,
                           const uint8_t packet[8]);
  /* ACK also for a packet whose toggle says that it has come before: the
     controller drops it. */
  enum usb_answer (*out)(void *owner, unsigned address, unsigned endpoint,
                         bool toggle, const uint8_t *data, unsigned size);
  /* ACK: a packet was sent and the host has acknowledged it. `data` has room
     for 64 bytes. */
  enum usb_answer (*in)(void *owner, unsigned address, unsigned endpoint,
                        bool *toggle, uint8_t *data, unsigned *size);
  /* Bytes of the packet that an IN would get now; 0 if there is none. Asked
     when the transaction begins, for how long it will take. */
  unsigned (*in_waits)(void *owner, unsigned endpoint);
};

/* -- for controllers -- */

/* The machine's bus, with a host at its other end that has not plugged in the
   cable yet. Copies `device`; machine_free frees the bus. */
struct usb_bus *usb_bus_create(struct machine *m,
                               const struct usb_device *device);
/* The device connects to the bus, or leaves it. */
void usb_bus_pull_up(struct usb_bus *bus, bool on);
/* Something has been given to an endpoint, or it has been stalled: what was
   answered NAK may not be any more. */
void usb_bus_ready(struct usb_bus *bus);
/* Number of the frame (11 bits) in which the bus is now. */
unsigned usb_bus_frame(const struct usb_bus *bus);

/* -- for the machine -- */
void usb_bus_free(struct usb_bus *bus);
