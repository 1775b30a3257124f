#include "host.h"

#include <stdlib.h>

int host_write(struct poet *p, uint32_t tensor, const uint8_t *rows,
               uint32_t most, uint32_t repeats) {
  const uint32_t size = reference.record[tensor].size_bytes;
  uint8_t *parts = malloc(size);
  int error = 0;
  reference_to_parts(tensor, rows, parts);
  most = most ? most : size;
  for (uint32_t at = 0, part; at < size && !error; at += part) {
    part = size - at < most ? size - at : most;
    bool again;
    do {
      again = repeats && !random_below(repeats);
      error = poet_write(p, POET_OBJECT_TENSOR, (uint16_t)tensor, at,
                         parts + at, part);
    } while (again && !error);
  }
  free(parts);
  return error;
}

int host_read(struct poet *p, uint32_t tensor, uint8_t *rows) {
  const uint32_t size = reference.record[tensor].size_bytes;
  const uint16_t number = (uint16_t)tensor;
  uint8_t *parts = malloc(size);
  int error = 0;
  bool equal = false;
  for (int tries = 2; tries && !error && !equal; tries--) {
    uint32_t crc;
    error = poet_read(p, POET_OBJECT_TENSOR, number, 0, parts, size);
    error = error ? error
                  : poet_checksum(p, POET_OBJECT_TENSOR, number, size, &crc);
    equal = !error && crc == poet_crc(0, parts, size);
  }
  reference_to_rows(tensor, parts, rows);
  free(parts);
  return error || equal ? error : POET_ERROR_page_damaged;
}
