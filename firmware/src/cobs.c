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

enum { RUN = 254, PIECE = 64 };

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

/* A buffer that collects bytes, because a call of the port's `send` for each
 * byte would be slow. */
struct gather {
  const struct poet_port *port;
  uint32_t size;
  uint8_t piece[PIECE];
};

static void put(struct gather *g, uint8_t byte) {
  g->piece[g->size++] = byte;
  if (g->size == PIECE) {
    g->port->send(g->port->context, g->piece, g->size);
    g->size = 0;
  }
}

void poet_cobs_send(const struct poet_port *port, const uint8_t *data,
                    uint32_t size) {
  struct gather g = {.port = port};
  uint32_t from = 0;
  bool more = true;
  while (more) {
    uint32_t run = 0;
    while (run < RUN && from + run < size && data[from + run]) {
      run++;
    }
    put(&g, (uint8_t)(run + 1));
    for (uint32_t i = 0; i < run; i++) {
      put(&g, data[from + i]);
    }
    from += run;
    /* Skip the zero that this run stands for. The longest run stands for no
     * zero, and at the end of the data no zero follows. */
    more = from < size;
    if (more && run < RUN) {
      from++;
    }
  }
  put(&g, 0);
  if (g.size) {
    port->send(port->context, g.piece, g.size);
  }
}
