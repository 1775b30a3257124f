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

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a frame in addition to its payload: sequence number, code,
 * CRC-32. */
#define POET_FRAME_EXTRA 6u
/* Most bytes that `bytes` bytes have in COBS encoding, with the final zero. */
#define POET_COBS_BYTES(bytes) ((bytes) + (bytes) / 254u + 2u)
/* Size of a buffer for one frame whose payload has `bytes` bytes. */
#define POET_FRAME_BUFFER(bytes) POET_COBS_BYTES((bytes) + POET_FRAME_EXTRA)

struct poet_server {
  struct poet *poet;
  /* buffer of POET_FRAME_BUFFER(frame_bytes) bytes, aligned to 4 */
  uint8_t *frame;
  uint32_t frame_bytes; /* largest payload */

  /* number of bytes of the current frame that are in `frame` */
  uint32_t received;
  bool overlong; /* the current frame is too long and will be dropped */
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
 * when `attended` is still false some time after the start. Return 0, or the
 * error that ended a job that had begun. */
POET_CHECKED int poet_serve_alone(struct poet_server *server);

/* COBS means consistent overhead byte stuffing. Both functions work in place
 * and return the new size. poet_cobs_encode adds the final zero; its buffer has
 * POET_COBS_BYTES(size) bytes. poet_cobs_decode returns UINT32_MAX if the bytes
 * are not valid COBS. */
uint32_t poet_cobs_encode(uint8_t *data, uint32_t size);
uint32_t poet_cobs_decode(uint8_t *data, uint32_t size);

#ifdef __cplusplus
}
#endif

#endif
