/*
 * ring.h - where the interrupt of a UART stores received bytes. The thread may
 * be busy for long, because kernels run long, and the line has no flow control.
 *
 * Two places hold bytes. One is `into`, the rest of the server's frame buffer,
 * which ring_take lends to the interrupt until a frame in it is complete. The
 * other is `bytes`, for all bytes that arrive while nothing is lent: a host
 * sends at most two short frames in that time. When `bytes` is full, bytes are
 * dropped. The CRC of their frame is then wrong, and the host repeats the
 * frame.
 *
 * A zero ends a frame. A zero after a zero is dropped: an empty frame would end
 * the loan before the frame that follows.
 *
 * State: while `room` is not 0, only the interrupt changes `stored` and `room`;
 * otherwise only the thread changes `into`, `stored` and `room`. The thread
 * sets `room` to 0 at any time, but sets another value only with interrupts
 * locked out and while `bytes` is empty: bytes in `into` are older than bytes
 * in `bytes`. Only the interrupt changes `head`, after it has stored a byte.
 * Only the thread changes `tail`, after it has copied a byte.
 */
#ifndef POET_RING_H
#define POET_RING_H

#include "chip.h"

enum { RING = 64 };

struct ring {
  uint8_t *into;
  volatile uint16_t stored; /* bytes in `into` */
  volatile uint16_t room;   /* free bytes after them; 0: nothing is lent */
  volatile uint8_t head;    /* index at which the next byte is stored */
  volatile uint8_t tail;    /* index of the next byte to take */
  bool ended;               /* the last stored byte is a zero */
  uint8_t bytes[RING];
};

static inline bool ring_holds(const struct ring *ring) {
  return ring->stored || ring->head != ring->tail;
}

static inline void ring_put(struct ring *ring, uint8_t byte) {
  const uint8_t after = (ring->head + 1) % RING;
  if (!byte && ring->ended) {
    return;
  }
  if (ring->room) {
    ring->into[ring->stored++] = byte;
    ring->room = byte ? ring->room - 1 : 0;
  } else if (after != ring->tail) {
    ring->bytes[ring->head] = byte;
    ring->head = after;
  } else {
    return;
  }
  ring->ended = !byte;
}

/* Take at most `size` bytes, none after a zero, and return their number. Lend
 * the rest of `data` to the interrupt, unless the last byte taken is a zero.
 * Bytes that lie in `into` stay where they are: `data` must follow the bytes
 * that the last call has taken. */
static inline uint32_t ring_take(struct ring *ring, uint8_t *data,
                                 uint32_t size) {
  ring->room = 0;
  uint32_t count = ring->stored;
  ring->stored = 0;
  while (count < size && !(count && !data[count - 1])) {
    const uint32_t was = chip_lock();
    const bool empty = ring->head == ring->tail;
    if (empty) {
      ring->into = data + count;
      ring->room = (uint16_t)(size - count);
    }
    chip_unlock(was);
    if (empty) {
      break;
    }
    data[count++] = ring->bytes[ring->tail];
    ring->tail = (ring->tail + 1) % RING;
  }
  return count;
}

/* Drop all bytes, and end the loan. */
static inline void ring_drop(struct ring *ring) {
  ring->room = 0;
  ring->stored = 0;
  ring->tail = ring->head;
}

#endif
