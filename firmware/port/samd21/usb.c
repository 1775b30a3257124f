/* SAM D21: the USB device controller (section 32), clocked by the DFLL that the
 * crystal holds to 48 MHz well within the 0.25 % of a full-speed device. Each
 * endpoint has two banks: one takes packets, the other sends them. */
#include "usb.h"

#include "chip.h"
#include "parts.h"
#include "registers.h"

enum {
  ENDPOINTS = 3,
  TAKE = 0,
  SEND = 1,
  PIN_DM = 24, /* PA24 and PA25 */
  PIN_DP = 25,
};

static struct {
  struct usb_bank banks[ENDPOINTS][2];
  uint32_t setup[3]; /* the packet, and its CRC if it came into a larger bank */
  bool status;       /* stage of the control transfer */
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

/* The next SETUP goes to a buffer of its own, of which 8 bytes are all that the
 * controller may fill; but for one that comes while it takes data. */
static void await_setup(void) {
  struct usb_bank *to = bank(USB_CONTROL_OUT);
  to->packet_size = USB_SIZE_8; /* first: one may come at any time */
  to->address = (uint32_t)(uintptr_t)controller.setup;
}

/* Nothing to send, no room to take anything, not halted. */
static void give_up(unsigned n) {
  USB_EPSTATUSSET(n) = USB_BKRDY(TAKE);
  USB_EPSTATUSCLR(n) = USB_BKRDY(SEND) | USB_STALLRQ(TAKE) | USB_STALLRQ(SEND);
}

/* The reset has cleared the rest, and a SETUP may have come since. */
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

/* Has the host given up the current request for one that we do not know yet? */
static bool outdated(uint8_t endpoint) {
  return number(endpoint) == 0 && (USB_EPINTFLAG(0) & USB_RXSTP);
}

void chip_usb_send(uint8_t endpoint, const uint8_t *data, uint32_t size) {
  if (outdated(endpoint)) {
    return;
  }
  bank(endpoint)->address = (uint32_t)(uintptr_t)data;
  bank(endpoint)->packet_size = USB_SIZE_64 | size;
  USB_EPSTATUSSET(number(endpoint)) = USB_BKRDY(SEND);
}

void chip_usb_receive(uint8_t endpoint, uint8_t *data) {
  if (outdated(endpoint)) {
    return;
  }
  bank(endpoint)->address = (uint32_t)(uintptr_t)data;
  bank(endpoint)->packet_size = USB_SIZE_64 | USB_MULTI_PACKET(USB_PACKET);
  USB_EPSTATUSCLR(number(endpoint)) = USB_BKRDY(TAKE);
}

void chip_usb_status(bool in) {
  controller.status = true;
  if (in) {
    chip_usb_send(USB_CONTROL_IN, (const uint8_t *)controller.setup, 0);
  } else if (!outdated(USB_CONTROL_OUT)) {
    USB_EPSTATUSCLR(0) = USB_BKRDY(TAKE); /* into the buffer for SETUP */
  }
}

void chip_usb_stall(uint8_t endpoint, bool stalled) {
  const unsigned n = number(endpoint), bit = USB_STALLRQ(direction(endpoint));
  if (outdated(endpoint)) {
    return;
  }
  if (n == 0) {
    USB_EPSTATUSSET(0) = USB_STALLRQ(TAKE) | USB_STALLRQ(SEND);
  } else if (stalled) {
    USB_EPSTATUSSET(n) = (uint8_t)bit;
  } else {
    USB_EPSTATUSCLR(n) = (uint8_t)(bit | USB_DTGL(direction(endpoint)));
  }
}

/* The boot loader looks for this word after a reset that is not power-on. */
void chip_usb_touched(void) {
  BOOT_LOADER_WORD = BOOT_LOADER_STAY;
  chip_restart();
}

/* -- interrupt -- */

/* What had ended before a SETUP came. */
static void stage_ended(unsigned flags) {
  if (controller.status) {
    controller.status = false;
    usb_status_ended();
  } else if (flags & USB_RXSTP) { /* the host has given up what it was in */
  } else if (flags & USB_TRCPT(SEND)) {
    usb_sent(USB_CONTROL_IN);
  } else {
    usb_received(USB_CONTROL_OUT,
                 bank(USB_CONTROL_OUT)->packet_size & USB_BYTES);
  }
}

/* No other is taken before RXSTP is cleared; what was given to the endpoint
 * since it came was for the transfer before. */
static void take_setup(void) {
  const uint32_t *packet =
      (const uint32_t *)(uintptr_t)bank(USB_CONTROL_OUT)->address;
  const uint32_t setup[2] = {packet[0], packet[1]};
  controller.status = false;
  give_up(0);
  await_setup();
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

/* What happens to the bus. The state is read after the flags are cleared, lest
 * a resume be lost; of suspend and resume, only what is next may interrupt. */
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

/* A field of the pads' calibration, as the factory has measured it. */
static unsigned calibration(unsigned at, unsigned mask, unsigned otherwise) {
  const unsigned value = USB_CALIBRATION >> at & mask;
  return value == mask ? otherwise : value;
}

void samd21_usb_start(void) {
  samd21_clock(GCLK_CHANNEL_USB, 0);
  samd21_pin(PIN_DM, FUNCTION_G);
  samd21_pin(PIN_DP, FUNCTION_G);
  await_setup();
  USB_CTRLA = USB_SWRST; /* a boot loader may have used it */
  while (USB_SYNCBUSY) {
  }
  USB_PADCAL = (uint16_t)(calibration(18, 31, 29) |     /* TRANSP */
                          calibration(13, 31, 5) << 6 | /* TRANSN */
                          calibration(23, 7, 3) << 12); /* TRIM */
  USB_QOSCTRL = USB_QOS_HIGH;
  USB_DESCADD = (uint32_t)(uintptr_t)controller.banks;
  USB_CTRLA = USB_ENABLE;
  while (USB_SYNCBUSY) {
  }
  USB_INTENSET = USB_EORST | USB_SUSPEND;
  samd21_interrupt(IRQ_USB, LANE_PRIORITY);
}
