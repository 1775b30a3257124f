/*
 * ring.h - buffer for bytes that a UART receives while the thread is busy: a
 * kernel may run long, and the line has no flow control. It has space for one
 * frame of full length and one short frame. When the buffer is full, bytes that
 * arrive are dropped. The CRC of their frame is then wrong, and the host
 * repeats the frame.
 *
 * Only the interrupt changes `head`, after it has stored a byte. Only the
 * thread changes `tail`, after it has copied a byte. So no lock is needed.
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
