/*
 * ring.h - buffer for bytes that a UART receives while the thread is busy: a
 * kernel may run long, and the line has no flow control. It has space for one
 * frame of full length and a short one. Bytes that arrive when it is full are
 * dropped; their frame then fails its CRC and the host repeats it.
 *
 * The interrupt alone moves `head` and the thread alone moves `tail`, each
 * after the byte was stored or copied. So neither needs a lock.
 */
#ifndef POET_RING_H
#define POET_RING_H

#include "poet/server.h"
#include "sizes.h"

enum { RING = POET_FRAME_BUFFER(BOARD_FRAME) + 16 };

struct ring {
  volatile uint16_t head; /* index at which the next byte is stored */
  volatile uint16_t tail; /* index of the next byte to take */
  uint8_t bytes[RING];
};

static inline bool ring_holds(const struct ring *ring) {
  return ring->head != ring->tail;
}

static inline uint16_t ring_after(uint16_t at) {
  return at + 1 == RING ? 0 : (uint16_t)(at + 1);
}

static inline void ring_put(struct ring *ring, uint8_t byte) {
  const uint16_t after = ring_after(ring->head);
  if (after != ring->tail) {
    ring->bytes[ring->head] = byte;
    ring->head = after;
  }
}

static inline uint32_t ring_take(struct ring *ring, uint8_t *data,
                                 uint32_t size) {
  uint32_t count = 0;
  while (count < size && ring_holds(ring)) {
    data[count++] = ring->bytes[ring->tail];
    ring->tail = ring_after(ring->tail);
  }
  return count;
}

#endif
