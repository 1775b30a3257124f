/*
 * usb.c - SAM D21: the USB device controller (section 32). Its clock is the
 * DFLL, which the crystal keeps at 48 MHz, well within the tolerance of a
 * full-speed device, 0.25 %. Each endpoint has two banks: one receives packets,
 * the other sends them.
 *
 * State: struct controller, which the hardware reads and writes by DMA. The
 * BKRDY bit of a bank shows whether the bank belongs to the hardware: a
 * receiving bank while the bit is clear, a sending bank while it is set.
 * `status` is set during the status stage.
 *
 * Order:
 * - A bank's address and size are written before BKRDY passes the bank to the
 *   hardware.
 * - A SETUP packet may arrive at any time and cannot be refused. So endpoint 0
 *   receives all packets in the same buffer, `received`.
 * - A SETUP ends all earlier requests. Once it is pending, nothing is passed to
 *   endpoint 0 for an older request. If a SETUP arrives in the same moment, the
 *   bank is taken back at once, before the host can use it (function `pass`).
 * - RXSTP is cleared after the packet has been copied: the controller accepts
 *   no other SETUP before that.
 */
#include "usb.h"

#include "chip.h"
#include "health.h"
#include "parts.h"
#include "registers.h"

enum {
  ENDPOINTS = 3,
  TAKE = 0,
  SEND = 1,
  CONTROL_BYTES = 8, /* of a SETUP; SET_LINE_CODING has 7 bytes of data */
  PIN_DM = 24,       /* PA24 and PA25 */
  PIN_DP = 25,
  MOST_POLLS = 10000, /* about 2 ms; a write takes microseconds */
};

static struct {
  struct usb_bank banks[ENDPOINTS][2];
  /* the latest packet of endpoint 0 */
  volatile uint32_t received[CONTROL_BYTES / 4];
  bool status; /* the status stage is in progress */
} controller;

static unsigned number(uint8_t endpoint) {
  return endpoint & 0xf;
}

static unsigned direction(uint8_t endpoint) {
  return endpoint & 0x80 ? SEND : TAKE;
}

static struct usb_bank *bank(uint8_t endpoint) {
  return &controller.banks[number(endpoint)][direction(endpoint)];
}

/* Take both banks back from the controller, and end a halt. */
static void give_up(unsigned n) {
  USB_EPSTATUSSET(n) = USB_BKRDY(TAKE);
  USB_EPSTATUSCLR(n) = USB_BKRDY(SEND) | USB_STALLRQ(TAKE) | USB_STALLRQ(SEND);
}

/* Open endpoint 0 after a bus reset. The endpoint's flags are not cleared: the
 * reset has cleared them, and a SETUP may have arrived since. */
static void open_control(void) {
  USB_EPCFG(0) = USB_CONTROL;
  give_up(0);
  USB_EPINTENSET(0) = USB_TRCPT(TAKE) | USB_TRCPT(SEND) | USB_RXSTP;
}

static void open(unsigned n, unsigned types) {
  USB_EPCFG(n) = (uint8_t)types;
  give_up(n);
  USB_EPSTATUSCLR(n) = USB_DTGL(TAKE) | USB_DTGL(SEND);
  USB_EPINTFLAG(n) = USB_EPINT_ALL;
  USB_EPINTENSET(n) = USB_TRCPT(TAKE) | USB_TRCPT(SEND);
}

void chip_usb_attach(void) {
  USB_CTRLB = USB_FULL_SPEED; /* and no DETACH */
}

void chip_usb_address(uint8_t address) {
  USB_DADD = USB_ADDEN | address;
}

void chip_usb_configure(bool configured) {
  open(number(USB_NOTICE_IN), configured ? USB_INTERRUPT(SEND) : 0);
  open(number(USB_DATA_IN), configured ? USB_BULK(TAKE) | USB_BULK(SEND) : 0);
}

/* Return true if a newer SETUP is pending, so that this request is
 * abandoned. */
static bool outdated(void) {
  return USB_EPINTFLAG(0) & USB_RXSTP;
}

/* Write to a status register of endpoint 0, unless the request is outdated. If
 * a SETUP arrives at the same time, cancel the write. No interrupt may come in
 * between, because the host can start the next stage within 3 us. */
static void pass(volatile uint8_t *status, uint8_t bits) {
  chip_finish_stores();
  const uint32_t was = chip_lock();
  if (!outdated()) {
    *status = bits;
    if (outdated()) {
      give_up(0);
    }
  }
  chip_unlock(was);
}

void chip_usb_send(uint8_t endpoint, const uint8_t *data, uint32_t size) {
  const unsigned n = number(endpoint);
  controller.banks[n][SEND].address = (uint32_t)(uintptr_t)data;
  controller.banks[n][SEND].packet_size = USB_SIZE_64 | size;
  if (n == 0) {
    pass(&USB_EPSTATUSSET(0), USB_BKRDY(SEND));
  } else {
    chip_finish_stores();
    USB_EPSTATUSSET(n) = USB_BKRDY(SEND);
  }
}

/* A packet of endpoint 0 arrives in `received`, and take_data copies it to
 * `data`. Until then, the idle sending bank keeps that address. */
void chip_usb_receive(uint8_t endpoint, uint8_t *data) {
  struct usb_bank *banks = controller.banks[endpoint];
  if (endpoint == USB_CONTROL_OUT) {
    banks[SEND].address = (uint32_t)(uintptr_t)data;
    banks[TAKE].packet_size = USB_SIZE_8 | USB_MULTI_PACKET(CONTROL_BYTES);
    pass(&USB_EPSTATUSCLR(0), USB_BKRDY(TAKE));
  } else {
    banks[TAKE].address = (uint32_t)(uintptr_t)data;
    banks[TAKE].packet_size = USB_SIZE_64 | USB_MULTI_PACKET(USB_PACKET);
    chip_finish_stores();
    USB_EPSTATUSCLR(endpoint) = USB_BKRDY(TAKE);
  }
}

void chip_usb_status(bool in) {
  controller.status = true;
  if (in) {
    chip_usb_send(USB_CONTROL_IN, (const uint8_t *)controller.received, 0);
  } else {
    pass(&USB_EPSTATUSCLR(0), USB_BKRDY(TAKE));
  }
}

void chip_usb_stall(uint8_t endpoint, bool stalled) {
  const unsigned n = number(endpoint), bit = USB_STALLRQ(direction(endpoint));
  if (n == 0) {
    pass(&USB_EPSTATUSSET(0), USB_STALLRQ(TAKE) | USB_STALLRQ(SEND));
  } else if (stalled) {
    USB_EPSTATUSSET(n) = (uint8_t)bit;
  } else {
    USB_EPSTATUSCLR(n) = (uint8_t)(bit | USB_DTGL(direction(endpoint)));
  }
}

/* The boot loader checks this word after every reset except power-on. */
void chip_usb_touched(void) {
  BOOT_LOADER_WORD = BOOT_LOADER_STAY;
  chip_restart();
}

/* -- interrupt -- */

/* A data stage has received a packet. If a SETUP arrives during the copy, it
 * overwrites the packet. */
static void take_data(void) {
  uint32_t *to = (uint32_t *)(uintptr_t)bank(USB_CONTROL_IN)->address;
  const uint32_t size = bank(USB_CONTROL_OUT)->packet_size & USB_BYTES;
  to[0] = controller.received[0];
  to[1] = controller.received[1];
  if (!outdated()) {
    usb_received(USB_CONTROL_OUT, size);
  }
}

/* Handle the end of a stage of a control transfer. A SETUP that is pending has
 * arrived later: a status stage is complete all the same, but any other stage
 * belongs to a transfer that the host has abandoned. */
static void stage_ended(unsigned flags) {
  if (controller.status) {
    controller.status = false;
    usb_status_ended();
  } else if (flags & USB_RXSTP) { /* the host has abandoned the transfer */
  } else if (flags & USB_TRCPT(SEND)) {
    usb_sent(USB_CONTROL_IN);
  } else {
    take_data();
  }
}

/* Copy the packet before RXSTP is cleared: until then, the controller accepts
 * no other SETUP. */
static void take_setup(void) {
  const uint32_t setup[2] = {controller.received[0], controller.received[1]};
  controller.status = false;
  bank(USB_CONTROL_OUT)->packet_size = USB_SIZE_8;
  USB_EPINTFLAG(0) = USB_RXSTP;
  usb_setup((const uint8_t *)setup);
}

static void control(void) {
  const unsigned ended = USB_TRCPT(TAKE) | USB_TRCPT(SEND);
  const unsigned flags = USB_EPINTFLAG(0);
  USB_EPINTFLAG(0) = (uint8_t)(flags & ended);
  if (flags & ended) {
    stage_ended(flags);
  }
  if (flags & USB_RXSTP) {
    take_setup();
  }
}

static void transfers(unsigned n) {
  const unsigned flags = USB_EPINTFLAG(n);
  USB_EPINTFLAG(n) = (uint8_t)flags;
  if (flags & USB_TRCPT(TAKE)) {
    usb_received((uint8_t)n, controller.banks[n][TAKE].packet_size & USB_BYTES);
  }
  if (flags & USB_TRCPT(SEND)) {
    usb_sent((uint8_t)(0x80 | n));
  }
}

/* Reset, suspend or resume of the bus. The state is read after the flags are
 * cleared, so that no resume is lost. Of the interrupts for suspend and resume,
 * only the one that can come next is enabled. */
static void bus_event(unsigned flags) {
  USB_INTFLAG = (uint16_t)flags;
  if (flags & USB_EORST) {
    controller.status = false;
    open_control();
    usb_reset();
  }
  const bool suspended = USB_FSMSTATUS == USB_FSM_SUSPEND;
  USB_INTENCLR = USB_SUSPEND | USB_WAKEUP;
  USB_INTENSET = suspended ? USB_WAKEUP : USB_SUSPEND;
  usb_suspend(suspended);
}

void usb_handler(void) {
  const unsigned flags = USB_INTFLAG & (USB_EORST | USB_SUSPEND | USB_WAKEUP);
  if (flags) {
    bus_event(flags);
  }
  control();
  transfers(number(USB_DATA_IN));
  transfers(number(USB_NOTICE_IN));
}

void chip_usb_poll(void) {
  usb_handler();
}

/* -- start -- */

/* Return a field of the pads' factory calibration, or `otherwise` if the field
 * is blank. */
static unsigned calibration(unsigned at, unsigned mask, unsigned otherwise) {
  const unsigned value = USB_CALIBRATION >> at & mask;
  return value == mask ? otherwise : value;
}

/* Wait until the last write has reached the controller. */
static void wait(void) {
  for (uint32_t polls = 0; USB_SYNCBUSY; polls++) {
    if (polls == MOST_POLLS) {
      health_restart(POET_RESET_usb, 0);
    }
  }
}

void samd21_usb_start(void) {
  samd21_clock(GCLK_CHANNEL_USB, 0);
  samd21_pin(PIN_DM, FUNCTION_G, 0);
  samd21_pin(PIN_DP, FUNCTION_G, 0);
  bank(USB_CONTROL_OUT)->packet_size = USB_SIZE_8;
  bank(USB_CONTROL_OUT)->address = (uint32_t)(uintptr_t)controller.received;
  USB_CTRLA = USB_SWRST; /* the boot loader may have left USB enabled */
  wait();
  USB_PADCAL = (uint16_t)(calibration(18, 31, 29) |     /* TRANSP */
                          calibration(13, 31, 5) << 6 | /* TRANSN */
                          calibration(23, 7, 3) << 12); /* TRIM */
  USB_QOSCTRL = USB_QOS_HIGH;
  USB_DESCADD = (uint32_t)(uintptr_t)controller.banks;
  USB_CTRLA = USB_ENABLE;
  wait();
  USB_INTENSET = USB_EORST | USB_SUSPEND;
  samd21_interrupt(IRQ_USB, LANE_PRIORITY);
}
