/*
 * server.h - the serial application: it receives request frames, calls the
 * library and sends reply frames.
 *
 * Messages and fields are the rows of wire.def. While a step runs, the server
 * answers status, reset and a repeated step, accepts writes of INPUT tensors
 * for the next step, and answers every other request with `busy`.
 */
#ifndef POET_SERVER_H
#define POET_SERVER_H

#include "poet.h"

/* Bytes of a frame in addition to its payload: sequence number, code,
 * CRC-32. */
#define POET_FRAME_EXTRA 6u
/* Size of a buffer for one frame whose payload has `bytes` bytes. COBS adds one
 * byte for each 254 bytes. */
#define POET_FRAME_BUFFER(bytes)                                               \
  ((bytes) + POET_FRAME_EXTRA + ((bytes) + POET_FRAME_EXTRA) / 254u + 2u)

struct poet_server {
  struct poet *poet;
  /* buffer of POET_FRAME_BUFFER(frame_bytes) bytes, aligned to 4 */
  uint8_t *frame;
  uint32_t frame_bytes; /* largest payload */

  /* number of bytes of the current frame that are in `frame` */
  uint32_t received;
  bool overlong;     /* the current frame is too long and will be dropped */
  uint8_t input[64]; /* bytes from the port */
  uint32_t input_size, input_next; /* number of valid bytes; next index */

  bool attended; /* a valid request has arrived since the start */
  /* true: a step runs, and the step's poll function calls poet_serve */
  bool stepping;
  bool stop;     /* a host has requested a reset during the running step */
  uint32_t step; /* number of the running step */
  /* sequence number of the latest request for the running step */
  uint8_t step_sequence;
};

/* Answer the requests that arrive within `wait_ms`. Call this function in a
 * loop. */
void poet_serve(struct poet_server *server, uint32_t wait_ms);

/* Train by the job on storage until the job is done, a step fails, or a host
 * requests a reset. Return at once if there is no job with steps left.
 * Meanwhile, requests are answered as during any other step. Call this function
 * when `attended` is still false some time after the start. */
void poet_serve_alone(struct poet_server *server);

/* COBS means consistent overhead byte stuffing. poet_cobs_decode works in place
 * and returns the size, or UINT32_MAX if the bytes are not valid COBS.
 * poet_cobs_send passes the encoded bytes and the final zero to the port, in
 * pieces. */
uint32_t poet_cobs_decode(uint8_t *data, uint32_t size);
void poet_cobs_send(const struct poet_port *port, const uint8_t *data,
                    uint32_t size);

#endif
