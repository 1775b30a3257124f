/*
 * cobs.c - consistent overhead byte stuffing (COBS). The encoded bytes of a
 * frame contain no zero, and a zero marks the end of the frame.
 *
 * The frame is a chain of runs. Each run begins with a code byte, which is the
 * distance to the next code byte. A code up to 254 stands for a zero after its
 * run, except at the end of the frame. A code of 255 begins a run of 254 bytes,
 * the longest one, and stands for no zero. No state is kept between calls.
 */
#include <string.h>

#include "poet/server.h"

enum { RUN = 254 };

uint32_t poet_cobs_decode(uint8_t *data, uint32_t size) {
  uint32_t from = 0, to = 0;
  while (from < size) {
    const uint32_t code = data[from++];
    if (code == 0 || code - 1 > size - from) {
      return UINT32_MAX;
    }
    memmove(data + to, data + from, code - 1);
    from += code - 1;
    to += code - 1;
    if (code <= RUN && from < size) {
      data[to++] = 0;
    }
  }
  return to;
}

/* The data first moves to the end of the buffer, so that the codes, at most one
 * for each RUN bytes and one more, never overwrite data. */
uint32_t poet_cobs_encode(uint8_t *data, uint32_t size) {
  const uint32_t end = POET_COBS_BYTES(size) - 1;
  uint32_t from = end - size, to = 0;
  bool more = true;
  memmove(data + from, data, size);
  while (more) {
    const uint32_t most = end - from < RUN ? end - from : RUN;
    const uint8_t *zero = memchr(data + from, 0, most);
    const uint32_t run = zero ? (uint32_t)(zero - data) - from : most;
    data[to++] = (uint8_t)(run + 1);
    memmove(data + to, data + from, run);
    to += run;
    from += run;
    /* Skip the zero that this run stands for. The longest run stands for no
     * zero, and at the end of the data no zero follows. */
    more = from < end;
    if (more && run < RUN) {
      from++;
    }
  }
  data[to++] = 0;
  return to;
}
