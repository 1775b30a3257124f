/* usb_bus.c - the transactions of the simulated host. This file selects the
   next transaction, computes how long it takes, and evaluates its answer (USB
   2.0, 5.8 and 8.5).

   State: struct usb_bus. `running` is the pipe whose transaction ends with the
   event `ended`; NULL: none. An IN takes this event twice: its token ends, then
   the transaction. Between the two, `reply` is the device's answer. Pipes take
   turns. A pipe that was answered NAK waits (`refused`) until the device calls
   usb_bus_ready. A real host would repeat its attempts during this wait, so the
   pipe's next transaction begins at the time of such an attempt. While an
   answer is handled (`performing`), no new transaction begins. */
#include <stdlib.h>
#include <string.h>

#include "usb_host.h"

enum {
  BIT_HZ = 12000000,
  /* Bus time, in bytes, that a transaction needs in addition to its data (USB
     2.0, table 5-9): one frame has room for 19 transactions of 64 bytes.
     NAK_BYTES is the time of a transaction that is answered NAK, without data
     and its CRC. A token has 35 bits. */
  OVERHEAD_BYTES = 13,
  NAK_BYTES = 8,
  TOKEN_BYTES = 4,
  SOF_BYTES = 6,
  FRAME_HZ = 1000,
  SILENCES = 3,              /* unanswered attempts until a transfer fails */
  PATIENCE_US = 5000 * 1000, /* time limit of a control transfer */
  DIRECTION_IN = 0x80,
};

static uint64_t byte_ticks(const struct usb_bus *bus, unsigned bytes) {
  return (uint64_t)bytes * 8 * bus->m->tick_hz / BIT_HZ;
}

uint64_t usb_bus_ticks(const struct usb_bus *bus, uint64_t us) {
  return us * bus->m->tick_hz / 1000000;
}

unsigned usb_bus_frame(const struct usb_bus *bus) {
  return (unsigned)(bus->m->now / (bus->m->tick_hz / FRAME_HZ)) & 0x7ff;
}

/* -- times -- */

/* Return the earliest time, not before `from`, at which a transaction of this
   length can begin and end in the same frame. */
static uint64_t fit(const struct usb_bus *bus, uint64_t from, uint64_t ticks) {
  const uint64_t frame = bus->m->tick_hz / FRAME_HZ;
  const uint64_t begin = from / frame * frame, sof = byte_ticks(bus, SOF_BYTES);
  if (from < begin + sof)
    from = begin + sof;
  return from + ticks <= begin + frame ? from : begin + frame + sof;
}

/* Return the earliest start of a pipe's next transaction. If the last one was
   answered NAK, the host is assumed to have repeated it without a pause since
   then. */
static uint64_t earliest(const struct usb_bus *bus,
                         const struct usb_pipe *pipe) {
  const uint64_t now = bus->m->now;
  if (!pipe->refused_once || now <= pipe->refused_at)
    return now;
  const uint64_t periods =
      (now - pipe->refused_at + pipe->period - 1) / pipe->period;
  return pipe->refused_at + periods * pipe->period;
}

static bool control_goes_in(const struct usb_control *c) {
  const bool reads = (c->setup[0] & DIRECTION_IN) && c->length;
  return c->stage == STAGE_STATUS ? !reads : reads;
}

static unsigned control_out_bytes(const struct usb_control *c) {
  const unsigned left = c->length - c->done;
  return c->stage != STAGE_DATA ? 0 : left < HOST_PACKET ? left : HOST_PACKET;
}

static bool is_setup(const struct usb_bus *bus, const struct usb_pipe *pipe) {
  return pipe == &bus->pipes[PIPE_CONTROL] && bus->control.stage == STAGE_SETUP;
}

static bool goes_in(const struct usb_bus *bus, const struct usb_pipe *pipe) {
  return pipe == &bus->pipes[PIPE_CONTROL]
             ? !is_setup(bus, pipe) && control_goes_in(&bus->control)
             : pipe->in;
}

/* Return the largest size of the transaction. */
static unsigned bytes_of(const struct usb_bus *bus,
                         const struct usb_pipe *pipe) {
  return OVERHEAD_BYTES + (is_setup(bus, pipe)  ? 8
                           : goes_in(bus, pipe) ? HOST_PACKET
                           : pipe == &bus->pipes[PIPE_CONTROL]
                               ? control_out_bytes(&bus->control)
                               : bus->out_size);
}

/* Begin the next transaction, if a pipe needs one. */
static void begin(struct usb_bus *bus) {
  if (bus->running || bus->performing || bus->quiet)
    return;
  struct usb_pipe *next = NULL;
  uint64_t at = NEVER;
  for (unsigned i = 1; i <= PIPES; i++) {
    struct usb_pipe *pipe = &bus->pipes[(bus->turn + i) % PIPES];
    if (pipe == &bus->pipes[PIPE_OUT] && pipe->active && !bus->out_size)
      bus->out_size = usb_tty_next_out(bus, bus->out);
    const bool wants = pipe->active && !pipe->refused &&
                       (pipe != &bus->pipes[PIPE_OUT] || bus->out_size);
    if (wants && earliest(bus, pipe) < at) {
      next = pipe;
      at = earliest(bus, pipe);
    }
  }
  if (next) {
    const bool in = goes_in(bus, next);
    const uint64_t ticks = byte_ticks(bus, bytes_of(bus, next));
    bus->running = next;
    bus->reply.given = false;
    bus->turn = (unsigned)(next - bus->pipes);
    next->period = in ? byte_ticks(bus, NAK_BYTES) : ticks;
    event_at(bus->m, &bus->ended,
             fit(bus, at, ticks) + (in ? byte_ticks(bus, TOKEN_BYTES) : ticks));
  }
}

/* Drop the running transaction. */
static void cut(struct usb_bus *bus) {
  bus->running = NULL;
  event_cancel(&bus->ended);
}

void usb_bus_hurry(struct usb_bus *bus) {
  if (bus->running && is_setup(bus, bus->running))
    event_at(bus->m, &bus->ended, bus->m->now);
}

/* -- control transfers -- */

static void control_over(struct usb_bus *bus, int result) {
  bus->pipes[PIPE_CONTROL].active = false;
  event_cancel(&bus->late);
  bus->control.then(bus, result);
}

static void too_late(void *owner, uint64_t at) {
  (void)at;
  struct usb_bus *bus = owner;
  if (bus->running == &bus->pipes[PIPE_CONTROL])
    cut(bus);
  control_over(bus, CONTROL_SILENT);
  begin(bus);
}

void usb_bus_control(struct usb_bus *bus, const uint8_t setup[8],
                     const void *data,
                     void (*then)(struct usb_bus *bus, int result)) {
  struct usb_control *c = &bus->control;
  if (bus->running == &bus->pipes[PIPE_CONTROL])
    cut(bus); /* of the transfer that this one replaces */
  memcpy(c->setup, setup, 8);
  c->length = (unsigned)(setup[6] | setup[7] << 8);
  if (c->length > CONTROL_BYTES)
    c->length = CONTROL_BYTES;
  c->done = 0;
  c->stage = STAGE_SETUP;
  c->then = then;
  if (data)
    memcpy(c->data, data, c->length);
  bus->pipes[PIPE_CONTROL] = (struct usb_pipe){.active = true};
  event_at(bus->m, &bus->late, bus->m->now + usb_bus_ticks(bus, PATIENCE_US));
  begin(bus);
}

/* Continue the transfer after an ACK. Every stage begins with DATA1. */
static void advance_control(struct usb_bus *bus, struct usb_pipe *pipe,
                            const uint8_t *data, unsigned size) {
  struct usb_control *c = &bus->control;
  if (c->stage == STAGE_SETUP) {
    c->stage = c->length ? STAGE_DATA : STAGE_STATUS;
    pipe->toggle = true;
  } else if (c->stage == STAGE_DATA) {
    const unsigned room = c->length - c->done;
    const unsigned count = size < room ? size : room;
    if (control_goes_in(c))
      memcpy(c->data + c->done, data, count);
    c->done += count;
    pipe->toggle = !pipe->toggle;
    if (c->done == c->length || size < HOST_PACKET) {
      c->stage = STAGE_STATUS;
      pipe->toggle = true;
    }
  } else {
    control_over(bus, (int)c->done);
  }
}

/* -- all transfers -- */

static void take(struct usb_bus *bus, struct usb_pipe *pipe,
                 const uint8_t *data, unsigned size) {
  if (pipe == &bus->pipes[PIPE_CONTROL]) {
    advance_control(bus, pipe, data, size);
    return;
  }
  pipe->toggle = !pipe->toggle;
  if (pipe->in)
    usb_tty_received(bus, (enum pipe_name)(pipe - bus->pipes), data, size);
  else
    bus->out_size = 0;
}

static void fail(struct usb_bus *bus, struct usb_pipe *pipe, int result) {
  pipe->active = false;
  if (pipe == &bus->pipes[PIPE_CONTROL])
    control_over(bus, result);
  else if (result == CONTROL_STALLED)
    usb_tty_stalled(bus, (enum pipe_name)(pipe - bus->pipes));
}

/* The token of an IN has ended: get the answer. */
static void reply(struct usb_bus *bus, uint64_t at) {
  const struct usb_device *d = &bus->device;
  struct usb_reply *r = &bus->reply;
  *r = (struct usb_reply){.given = true, .toggle = bus->running->toggle};
  r->answer = d->in(d->owner, bus->address, bus->running->endpoint, &r->toggle,
                    r->data, &r->size);
  const unsigned bytes =
      r->answer == USB_ACK ? OVERHEAD_BYTES + r->size : NAK_BYTES;
  event_at(bus->m, &bus->ended, at + byte_ticks(bus, bytes - TOKEN_BYTES));
}

/* Send a packet to the device, which is a SETUP or an OUT. */
static enum usb_answer send(struct usb_bus *bus, const struct usb_pipe *pipe,
                            unsigned *size) {
  const struct usb_device *d = &bus->device;
  const struct usb_control *c = &bus->control;
  if (is_setup(bus, pipe))
    return d->setup(d->owner, bus->address, 0, c->setup);
  const bool control = pipe == &bus->pipes[PIPE_CONTROL];
  *size = control ? control_out_bytes(c) : bus->out_size;
  return d->out(d->owner, bus->address, pipe->endpoint, pipe->toggle,
                control ? c->data + c->done : bus->out, *size);
}

static void end(void *owner, uint64_t at) {
  struct usb_bus *bus = owner;
  struct usb_pipe *pipe = bus->running;
  struct usb_reply *r = &bus->reply;
  const bool in = goes_in(bus, pipe);
  if (in && !r->given) {
    reply(bus, at);
    return;
  }
  unsigned size = r->size;
  bus->running = NULL;
  bus->performing = true;
  pipe->refused_once = false;
  const enum usb_answer answer = in ? r->answer : send(bus, pipe, &size);
  if (answer != USB_SILENCE)
    pipe->silences = 0;
  if (in && answer == USB_ACK)
    bus->device.sent(bus->device.owner, pipe->endpoint);
  if (answer == USB_ACK && (!in || r->toggle == pipe->toggle)) {
    take(bus, pipe, r->data, size); /* a wrong toggle is a repetition */
  } else if (answer == USB_NAK) {
    pipe->refused = !in || !r->outdated;
    pipe->refused_once = true;
    pipe->refused_at = at;
  } else if (answer == USB_STALL) {
    fail(bus, pipe, CONTROL_STALLED);
  } else if (answer == USB_SILENCE && ++pipe->silences == SILENCES) {
    fail(bus, pipe, CONTROL_SILENT);
  }
  usb_tty_next(bus);
  bus->performing = false;
  begin(bus);
}

void usb_bus_ready(struct usb_bus *bus) {
  for (unsigned i = 0; i < PIPES; i++)
    bus->pipes[i].refused = false;
  bus->reply.outdated = true;
  begin(bus);
}

/* -- pipes -- */

void usb_bus_open(struct usb_bus *bus, enum pipe_name name, unsigned address) {
  bus->pipes[name] = (struct usb_pipe){.endpoint = address & 15,
                                       .in = (address & DIRECTION_IN) != 0};
}

void usb_bus_activate(struct usb_bus *bus, enum pipe_name name, bool active) {
  bus->pipes[name].active = active;
  if (active)
    begin(bus);
}

void usb_bus_quiet(struct usb_bus *bus, bool quiet) {
  bus->quiet = quiet;
  if (quiet)
    cut(bus);
  else
    begin(bus);
}

void usb_bus_abort(struct usb_bus *bus) {
  cut(bus);
  bus->out_size = 0;
  event_cancel(&bus->late);
  for (unsigned i = 0; i < PIPES; i++)
    bus->pipes[i].active = false;
}

/* -- functions for the models of USB controllers, and the cable -- */

struct usb_bus *usb_bus_create(struct machine *m,
                               const struct usb_device *device) {
  struct usb_bus *bus = calloc(1, sizeof *bus);
  bus->m = m;
  bus->device = *device;
  event_add(m, &bus->ended, end, bus);
  event_add(m, &bus->late, too_late, bus);
  usb_host_create(bus);
  m->usb = bus;
  return bus;
}

void usb_bus_free(struct usb_bus *bus) {
  if (bus)
    usb_host_free(bus);
  free(bus);
}

void usb_bus_pull_up(struct usb_bus *bus, bool on) {
  const bool was = bus->plugged && bus->pulled_up;
  bus->pulled_up = on;
  if (was != (bus->plugged && on))
    usb_host_connected(bus, !was);
}

void machine_usb_plug(struct machine *m, bool in) {
  struct usb_bus *bus = m->usb;
  if (!bus || bus->plugged == in)
    return;
  bus->plugged = in;
  bus->device.power(bus->device.owner, in);
  if (bus->pulled_up)
    usb_host_connected(bus, in);
}
