/*
 * ring.h - what a UART receives while nobody asks for it: a kernel may run for
 * long, and a line without flow control waits for nobody. A whole frame has
 * room, and a ping; what comes when it is full is dropped, and the frame that
 * it was part of fails its CRC.
 */
#ifndef POET_RING_H
#define POET_RING_H

#include "poet/server.h"
#include "sizes.h"

enum { RING = POET_FRAME_BUFFER(BOARD_FRAME) + 16 };

struct ring {
  volatile uint16_t head, tail; /* where the next byte goes, comes from */
  uint8_t bytes[RING];
};

static inline bool ring_holds(const struct ring *ring) {
  return ring->head != ring->tail;
}

static inline uint16_t ring_behind(uint16_t at) {
  return at + 1 == RING ? 0 : (uint16_t)(at + 1);
}

static inline void ring_put(struct ring *ring, uint8_t byte) {
  const uint16_t behind = ring_behind(ring->head);
  if (behind != ring->tail) {
    ring->bytes[ring->head] = byte;
    ring->head = behind;
  }
}

static inline uint32_t ring_take(struct ring *ring, uint8_t *data,
                                 uint32_t size) {
  uint32_t count = 0;
  while (count < size && ring_holds(ring)) {
    data[count++] = ring->bytes[ring->tail];
    ring->tail = ring_behind(ring->tail);
  }
  return count;
}

#endif
