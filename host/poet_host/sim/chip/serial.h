/* serial.h - the line between a UART model and the outside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SERIAL_RING = 1 << 16 };

struct serial_ring {
  uint8_t bytes[SERIAL_RING];
  /* number of bytes put and taken so far; both wrap around */
  uint32_t head, tail;
};

struct serial {
  struct serial_ring to_chip, from_chip;
  void (*arrived)(void *owner); /* called when bytes wait for the chip */
  void *owner;
};

uint32_t serial_waiting(const struct serial_ring *ring);
bool serial_put(struct serial_ring *ring, uint8_t byte); /* false: full */
uint8_t serial_get(struct serial_ring *ring);
/* Put as many bytes as there is space for, or get as many as there are. Both
   return the number of bytes. */
uint32_t serial_give(struct serial_ring *ring, const uint8_t *data,
                     uint32_t size_bytes);
uint32_t serial_take(struct serial_ring *ring, uint8_t *data,
                     uint32_t size_bytes);
