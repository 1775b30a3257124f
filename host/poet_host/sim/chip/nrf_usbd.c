/* nrf_usbd.c - USBD (chapter of this name): registers and EasyDMA. Isochronous
   endpoints, forced line states and the low-power mode are not modelled.

   State: struct nrf_usbd. Each endpoint and direction has a buffer for one
   packet (struct nrf_pipe) between the bus (nrf_usbd_bus.c) and EasyDMA.
   `moving` is the pipe whose packet EasyDMA moves, until the event `moved`.
   While `moving` is set, or before `ready` is set, most registers must not be
   accessed. */
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
  IS_IN = 0x80, /* in DTOGGLE and EPSTALL */
  ALL_EVENTS = (1 << 25) - 1 - (1 << 11) - (1 << 20), /* no isochronous ones */
  ENABLE_TICKS = 64 * 20, /* assumed; specified as "a few microseconds" */
  DMA_TICKS = 64,         /* assumed: no time is specified */
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

static bool enable(void *owner, uint32_t on) {
  struct nrf_usbd *u = owner;
  if (u->enable == on)
    return true;
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
  return true;
}

static bool pull_up(void *owner, uint32_t on) {
  struct nrf_usbd *u = owner;
  const struct nrf_power *power = &u->p.chip->power;
  if (on && power->vbus && !power->usb_supplied)
    nrf_stop(&u->p, "the pull-up is connected before USBPWRRDY");
  if (on && !power->crystal_running)
    nrf_stop(&u->p, "the pull-up is connected before the crystal runs");
  u->pull_up = on;
  usb_bus_pull_up(u->bus, on);
  return true;
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
  machine_check_stores(m, "a transfer of USBD");
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
  if (machine_hangs(((struct nrf_usbd *)owner)->p.chip->m, HANG_USB))
    return;
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

/* Return true if the register can be accessed. Otherwise stop the machine:
   while EasyDMA moves a packet, most registers read wrong values, and tasks are
   lost ("USB register access limitations", and experience of drivers). */
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
    return offset % 4 == 0; /* if true, reachable() has stopped the machine */
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

static struct nrf_pipe *pipe_of(struct nrf_usbd *u, uint32_t selected) {
  const uint32_t n = selected % NRF_USB_ENDPOINTS;
  return selected & IS_IN ? &u->in[n] : &u->out[n];
}

static uint32_t read_toggle(void *owner) {
  struct nrf_usbd *u = owner;
  return u->toggle_selected |
         (pipe_of(u, u->toggle_selected)->toggle ? 2u << 8 : 1u << 8);
}

static bool write_toggle(void *owner, uint32_t value) {
  struct nrf_usbd *u = owner;
  u->toggle_selected = value & (IS_IN | 7);
  if (value >> 8)
    pipe_of(u, value)->toggle = value >> 8 == 2;
  return value >> 8 <= 2;
}

static bool write_stall(void *owner, uint32_t value) {
  pipe_of(owner, value)->halted = value >> 8 & 1;
  return true;
}

static uint32_t frame_number(void *owner) {
  const struct nrf_usbd *u = owner;
  return usb_bus_frame(u->bus);
}

/* Accept the next packet from the host. A packet that EasyDMA has not moved yet
   is lost. */
static bool take(void *owner, uint32_t value) {
  struct nrf_pipe *pipe = owner;
  (void)value;
  pipe->taken = true;
  pipe->full = false;
  return true;
}

static void *in_pipe(void *owner, unsigned n) {
  return pipe_of(owner, IS_IN | n);
}

static void *out_pipe(void *owner, unsigned n) {
  return pipe_of(owner, n);
}

#define OF_PIPE(member) FIELD(struct nrf_pipe, member)
static const struct reg size[] = {
    {0, 4, BY_FUNCTION, OF_PIPE(size), .set = take}, {0}};
static const struct reg halted[] = {{0, 4, READ_ONLY, OF_PIPE(halted)}, {0}};
static const struct reg channel[] = {{0, 4, PLAIN, OF_PIPE(dma.pointer)},
                                     {4, 4, PLAIN, OF_PIPE(dma.count)},
                                     {8, 4, READ_ONLY, OF_PIPE(dma.amount)},
                                     {0}};

#define OF_USBD(member) FIELD(struct nrf_usbd, member)
#define OF_PIPES(pipes, bytes, registers)                                      \
  .count = NRF_USB_ENDPOINTS, .part = pipes, .stride = bytes, .table = registers
static const struct reg registers[] = {
    {EVENTCAUSE, 4, CLEAR_ONES, OF_USBD(causes)},
    {HALTED_IN, OF_PIPES(in_pipe, 4, halted)},
    {HALTED_OUT, OF_PIPES(out_pipe, 4, halted)},
    {EPSTATUS, 4, CLEAR_ONES, OF_USBD(captured)},
    {EPDATASTATUS, 4, CLEAR_ONES, OF_USBD(transferred)},
    {USBADDR, 4, READ_ONLY, OF_USBD(address)},
    {SETUP, 4, READ_ONLY, OF_USBD(setup[0]), .count = 8},
    {SIZE, OF_PIPES(out_pipe, 4, size)},
    {ENABLE, 4, BY_FUNCTION, OF_USBD(enable), .most = 1, .set = enable},
    {USBPULLUP, 4, BY_FUNCTION, OF_USBD(pull_up), .most = 1, .set = pull_up},
    {DTOGGLE, 4, BY_FUNCTION, .get = read_toggle, .set = write_toggle},
    {EPINEN, 4, PLAIN, OF_USBD(in_enabled), .most = 0xff},
    {EPOUTEN, 4, PLAIN, OF_USBD(out_enabled), .most = 0xff},
    {EPSTALL, 4, WRITE_ONLY, .set = write_stall},
    {FRAMECNTR, 4, .get = frame_number},
    {IN_CHANNELS, OF_PIPES(in_pipe, CHANNEL_BYTES, channel)},
    {OUT_CHANNELS, OF_PIPES(out_pipe, CHANNEL_BYTES, channel)},
    {0}};

static bool usbd_read(struct nrf_peripheral *p, uint32_t offset,
                      uint32_t *value) {
  struct nrf_usbd *u = (struct nrf_usbd *)p;
  *value = 0;
  return !reachable(u, offset) ||
         register_read(registers, u, offset, 4, value) ||
         register_read(nrf_usbd_errata_registers, u, offset, 4, value);
}

static bool usbd_write(struct nrf_peripheral *p, uint32_t offset,
                       uint32_t value) {
  struct nrf_usbd *u = (struct nrf_usbd *)p;
  if (!reachable(u, offset))
    return true;
  if (!register_write(registers, u, offset, 4, value))
    return register_write(nrf_usbd_errata_registers, u, offset, 4, value);
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
