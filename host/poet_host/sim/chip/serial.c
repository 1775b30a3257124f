/* serial.c - two rings of bytes, one in each direction. Python puts bytes in
   and takes them out between two runs of the machine; the UART model does so at
   the ticks of its baud rate. */
#include "serial.h"

#include "machine.h"

uint32_t serial_waiting(const struct serial_ring *ring) {
  return ring->head - ring->tail;
}

bool serial_put(struct serial_ring *ring, uint8_t byte) {
  if (serial_waiting(ring) == SERIAL_RING)
    return false;
  ring->bytes[ring->head++ % SERIAL_RING] = byte;
  return true;
}

uint8_t serial_get(struct serial_ring *ring) {
  return ring->bytes[ring->tail++ % SERIAL_RING];
}

uint32_t serial_give(struct serial_ring *ring, const uint8_t *data,
                     uint32_t size_bytes) {
  uint32_t given = 0;
  while (given < size_bytes && serial_put(ring, data[given]))
    given++;
  return given;
}

uint32_t serial_take(struct serial_ring *ring, uint8_t *data,
                     uint32_t size_bytes) {
  uint32_t taken = 0;
  while (taken < size_bytes && serial_waiting(ring))
    data[taken++] = serial_get(ring);
  return taken;
}

uint32_t machine_serial_give(struct machine *m, const uint8_t *data,
                             uint32_t size_bytes) {
  const uint32_t given = serial_give(&m->serial.to_chip, data, size_bytes);
  if (given && m->serial.arrived)
    m->serial.arrived(m->serial.owner);
  return given;
}

uint32_t machine_serial_take(struct machine *m, uint8_t *data,
                             uint32_t size_bytes) {
  return serial_take(&m->serial.from_chip, data, size_bytes);
}

uint32_t machine_serial_waiting(const struct machine *m) {
  return serial_waiting(&m->serial.from_chip);
}
