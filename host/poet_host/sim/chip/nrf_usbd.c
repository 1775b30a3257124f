/* nrf_usbd.c - USBD (chapter of this name): registers and EasyDMA. Isochronous
   endpoints, forced line states and the low-power mode are not modelled.

   State: struct nrf_usbd. Each endpoint and direction has a buffer for one
   packet (struct nrf_pipe) between the bus (nrf_usbd_bus.c) and EasyDMA.
   `moving` is the one that EasyDMA moves, until the event `moved`. While it is
   set, or before `ready`, most registers must not be accessed. */
#include "nrf_usbd.h"

#include <string.h>

enum {
  STARTEPIN = 0x004,
  STARTEPOUT = 0x028,
  EP0RCVOUT = 0x04c,
  EP0STATUS = 0x050,
  EP0STALL = 0x054,
  EVENTCAUSE = 0x400,
  HALTED_IN = 0x420,
  HALTED_OUT = 0x444,
  EPSTATUS = 0x468,
  EPDATASTATUS = 0x46c,
  USBADDR = 0x470,
  SETUP = 0x480,
  SIZE = 0x4a0,
  ENABLE = 0x500,
  USBPULLUP = 0x504,
  DTOGGLE = 0x50c,
  EPINEN = 0x510,
  EPOUTEN = 0x514,
  EPSTALL = 0x518,
  FRAMECNTR = 0x520,
  IN_CHANNELS = 0x600,
  OUT_CHANNELS = 0x700,
  CHANNEL_BYTES = 0x14,
  AMOUNT = 8, /* of a channel */
  CHANNELS_BYTES = NRF_USB_ENDPOINTS * CHANNEL_BYTES,
  IS_IN = 0x80, /* in DTOGGLE and EPSTALL */
  ALL_EVENTS = (1 << 25) - 1 - (1 << 11) - (1 << 20), /* no isochronous ones */
  ENABLE_TICKS = 64 * 20, /* not specified: "a few microseconds" */
  DMA_TICKS = 64,         /* not specified, as is the time of a byte */
  DMA_BYTE_TICKS = 4,
};

void nrf_usbd_cause(struct nrf_usbd *u, uint32_t cause) {
  u->causes |= cause;
  nrf_event(&u->p, USBD_USBEVENT);
}

/* -- on and off -- */

static void start(void *owner, uint64_t at) {
  (void)at;
  struct nrf_usbd *u = owner;
  u->ready = true;
  nrf_usbd_cause(u, USBD_CAUSE_READY);
}

static void enable(struct nrf_usbd *u, bool on) {
  if (u->enable == on)
    return;
  u->enable = on;
  if (on) {
    nrf_usbd_check_enable(u);
    event_at(u->p.chip->m, &u->started, u->p.chip->m->now + ENABLE_TICKS);
  } else {
    event_cancel(&u->started);
    event_cancel(&u->moved);
    u->moving = NULL;
    u->ready = false;
    u->pull_up = 0;
    usb_bus_pull_up(u->bus, false);
    nrf_usbd_forget(u);
  }
  nrf_power_usb(u->p.chip);
}

static void pull_up(struct nrf_usbd *u, uint32_t on) {
  const struct nrf_power *power = &u->p.chip->power;
  if (on && power->vbus && !power->usb_supplied)
    nrf_stop(&u->p, "the pull-up is connected before USBPWRRDY");
  if (on && !power->crystal_running)
    nrf_stop(&u->p, "the pull-up is connected before the crystal runs");
  u->pull_up = on;
  usb_bus_pull_up(u->bus, on);
}

/* -- EasyDMA: between a packet's buffer and RAM -- */

static void move(struct nrf_usbd *u, bool in, unsigned n) {
  struct machine *m = u->p.chip->m;
  struct nrf_pipe *pipe = in ? &u->in[n] : &u->out[n];
  const struct nrf_channel now = {pipe->dma.pointer, pipe->dma.count, 0};
  if (now.count > NRF_USB_PACKET)
    nrf_stop(&u->p, "MAXCNT is more than a packet");
  else if (!in && !pipe->full)
    nrf_stop(&u->p, "STARTEPOUT before a packet has come");
  nrf_usbd_check_moving(u);
  if (!machine_dma(m, u->p.name, now.pointer, now.count) || m->stopped)
    return;
  u->moving = pipe;
  u->moving_now = now;
  u->moving_in = in;
  u->moving_number = n;
  u->captured |= 1u << (n + (in ? 0 : 16));
  nrf_event(&u->p, USBD_STARTED);
  event_at(m, &u->moved, m->now + DMA_TICKS + DMA_BYTE_TICKS * now.count);
}

static void moved(void *owner, uint64_t at) {
  (void)at;
  struct nrf_usbd *u = owner;
  struct nrf_pipe *pipe = u->moving;
  const uint32_t count = u->moving_now.count;
  uint8_t *ram =
      machine_dma(u->p.chip->m, u->p.name, u->moving_now.pointer, count);
  u->moving = NULL;
  if (!ram)
    return;
  pipe->dma.amount = count;
  if (u->moving_in) {
    memcpy(pipe->packet, ram, count);
    pipe->size = count;
  } else {
    memcpy(ram, pipe->packet, count);
    pipe->taken = u->moving_number != 0; /* endpoint 0 waits for EP0RCVOUT */
  }
  pipe->full = u->moving_in;
  nrf_event(&u->p,
            (u->moving_in ? USBD_ENDEPIN : USBD_ENDEPOUT) + u->moving_number);
  usb_bus_ready(u->bus);
}

void nrf_usbd_finish_moving(struct nrf_usbd *u) {
  if (u->moving) {
    event_cancel(&u->moved);
    moved(u, u->p.chip->m->now);
  }
}

/* -- registers -- */

/* "USB register access limitations", and experience of drivers: while EasyDMA
   moves a packet, these registers read wrong values and tasks are lost. */
static bool reachable(struct nrf_usbd *u, uint32_t offset) {
  const bool limited = offset < 0x100 ||
                       (offset >= HALTED_IN && offset < EPSTATUS) ||
                       (offset >= USBADDR && offset < ENABLE) ||
                       (offset >= USBPULLUP && offset <= FRAMECNTR);
  if (limited && !u->ready)
    nrf_stop(&u->p, "a task or register that waits for EVENTCAUSE.READY");
  else if (limited && u->moving)
    nrf_stop(&u->p, "a task or register that waits for the end of EasyDMA");
  return !limited || (u->ready && !u->moving);
}

static bool task(struct nrf_peripheral *p, uint32_t offset) {
  struct nrf_usbd *u = (struct nrf_usbd *)p;
  const uint32_t in = offset - STARTEPIN, out = offset - STARTEPOUT;
  if (!reachable(u, offset) || offset % 4)
    return offset % 4 == 0; /* the machine has stopped, with a reason */
  if (in / 4 < NRF_USB_ENDPOINTS)
    move(u, true, in / 4);
  else if (out / 4 < NRF_USB_ENDPOINTS)
    move(u, false, out / 4);
  else if (offset == EP0RCVOUT)
    u->out[0].taken = true;
  else if (offset == EP0STATUS)
    u->status_allowed = true;
  else if (offset == EP0STALL)
    u->control_stalled = true;
  else
    return false;
  usb_bus_ready(u->bus);
  return true;
}

static uint32_t *channel_register(struct nrf_usbd *u, uint32_t offset) {
  struct nrf_pipe *pipes = offset < OUT_CHANNELS ? u->in : u->out;
  const uint32_t at =
      offset - (offset < OUT_CHANNELS ? IN_CHANNELS : OUT_CHANNELS);
  if (offset < IN_CHANNELS || at >= CHANNELS_BYTES)
    return NULL;
  struct nrf_channel *channel = &pipes[at / CHANNEL_BYTES].dma;
  uint32_t *registers[] = {&channel->pointer, &channel->count,
                           &channel->amount};
  const uint32_t which = at % CHANNEL_BYTES / 4;
  return which < 3 ? registers[which] : NULL;
}

static uint32_t *plain_register(struct nrf_usbd *u, uint32_t offset) {
  switch (offset) {
  case EVENTCAUSE:
    return &u->causes;
  case EPSTATUS:
    return &u->captured;
  case EPDATASTATUS:
    return &u->transferred;
  case USBADDR:
    return &u->address;
  case ENABLE:
    return &u->enable;
  case USBPULLUP:
    return &u->pull_up;
  case EPINEN:
    return &u->in_enabled;
  case EPOUTEN:
    return &u->out_enabled;
  default:
    return channel_register(u, offset);
  }
}

static struct nrf_pipe *pipe_of(struct nrf_usbd *u, uint32_t selected) {
  const uint32_t n = selected % NRF_USB_ENDPOINTS;
  return selected & IS_IN ? &u->in[n] : &u->out[n];
}

static bool usbd_read(struct nrf_peripheral *p, uint32_t offset,
                      uint32_t *value) {
  struct nrf_usbd *u = (struct nrf_usbd *)p;
  const uint32_t *plain = plain_register(u, offset);
  *value = 0;
  if (offset % 4 || !reachable(u, offset))
    return offset % 4 == 0;
  if (plain)
    *value = *plain;
  else if (offset >= SETUP && offset < SETUP + 32)
    *value = u->setup[(offset - SETUP) / 4];
  else if (offset >= SIZE && offset < SIZE + 4 * NRF_USB_ENDPOINTS)
    *value = u->out[(offset - SIZE) / 4].size;
  else if (offset >= HALTED_IN && offset < HALTED_IN + 32)
    *value = u->in[(offset - HALTED_IN) / 4].halted;
  else if (offset >= HALTED_OUT && offset < HALTED_OUT + 32)
    *value = u->out[(offset - HALTED_OUT) / 4].halted;
  else if (offset == DTOGGLE)
    *value = u->toggle_selected |
             (pipe_of(u, u->toggle_selected)->toggle ? 2u << 8 : 1u << 8);
  else if (offset == FRAMECNTR)
    *value = usb_bus_frame(u->bus);
  else
    return nrf_usbd_errata_read(u, offset, value);
  return true;
}

static void select_toggle(struct nrf_usbd *u, uint32_t value) {
  u->toggle_selected = value & (IS_IN | 7);
  if (value >> 8)
    pipe_of(u, value)->toggle = value >> 8 == 2;
}

/* Accept the next packet; one that was not moved yet is lost. */
static void take(struct nrf_pipe *pipe) {
  pipe->taken = true;
  pipe->full = false;
}

static bool usbd_write(struct nrf_peripheral *p, uint32_t offset,
                       uint32_t value) {
  struct nrf_usbd *u = (struct nrf_usbd *)p;
  uint32_t *channel = channel_register(u, offset);
  if (offset % 4 || !reachable(u, offset))
    return offset % 4 == 0;
  if (offset == EVENTCAUSE || offset == EPSTATUS || offset == EPDATASTATUS)
    *plain_register(u, offset) &= ~value;
  else if (offset == ENABLE && value <= 1)
    enable(u, value);
  else if (offset == USBPULLUP && value <= 1)
    pull_up(u, value);
  else if ((offset == EPINEN || offset == EPOUTEN) && value <= 0xff)
    *plain_register(u, offset) = value;
  else if (offset == DTOGGLE && value >> 8 <= 2)
    select_toggle(u, value);
  else if (offset == EPSTALL)
    pipe_of(u, value)->halted = value >> 8 & 1;
  else if (offset >= SIZE && offset < SIZE + 4 * NRF_USB_ENDPOINTS)
    take(&u->out[(offset - SIZE) / 4]);
  else if (channel && offset % 0x100 % CHANNEL_BYTES != AMOUNT)
    *channel = value;
  else
    return nrf_usbd_errata_write(u, offset, value);
  usb_bus_ready(u->bus);
  return true;
}

void nrf_usbd_create(struct nrf52840 *chip) {
  struct nrf_usbd *u = &chip->usbd;
  u->p = (struct nrf_peripheral){.name = "USBD",
                                 .base = 0x40027000,
                                 .irq = 39,
                                 .known_events = ALL_EVENTS,
                                 .task = task,
                                 .read = usbd_read,
                                 .write = usbd_write};
  event_add(chip->m, &u->started, start, u);
  event_add(chip->m, &u->moved, moved, u);
  nrf_add(chip, &u->p);
  nrf_usbd_errata_create(u);
  nrf_usbd_bus_create(u);
}
