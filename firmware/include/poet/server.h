/*
 * server.h - the serial application: frames in, library calls, frames out.
 *
 * Messages and fields are the rows of wire.def. While a step runs the server
 * answers status and reset, takes what is written for the next step, and
 * answers every other request with `busy`.
 */
#ifndef POET_SERVER_H
#define POET_SERVER_H

#include "poet.h"

/* Bytes around a payload: sequence, code, CRC-32. */
#define POET_FRAME_EXTRA 6u
/* Buffer that a server needs for payloads of `bytes`: COBS adds one in 254. */
#define POET_FRAME_BUFFER(bytes)                                               \
  ((bytes) + POET_FRAME_EXTRA + ((bytes) + POET_FRAME_EXTRA) / 254u + 2u)

struct poet_server {
  struct poet *poet;
  uint8_t *frame; /* aligned to 4, POET_FRAME_BUFFER(frame_bytes) long */
  uint32_t frame_bytes;

  uint32_t received; /* bytes of the frame coming in */
  bool overlong;     /* it does not fit: drop it */
  uint8_t input[64];
  uint32_t input_size, input_next;

  bool attended; /* a host has spoken since the start */
  bool stepping;
  bool stop;
  uint32_t step;
  uint8_t step_sequence; /* of the latest request for this step */
};

/* Answer what arrives within wait_ms. Call it forever. */
void poet_serve(struct poet_server *server, uint32_t wait_ms);

/* Train by the job on storage, if there is one with steps left, until it is
 * done, a step fails, or a host asks for a reset; requests are answered as in
 * any step. Call it when `attended` is still false some time after the start.
 */
void poet_serve_alone(struct poet_server *server);

/* COBS. decode works in place and returns the size, or UINT32_MAX if the bytes
 * are no code; encode hands pieces to the port, zero at the end included. */
uint32_t poet_cobs_decode(uint8_t *data, uint32_t size);
void poet_cobs_send(const struct poet_port *port, const uint8_t *data,
                    uint32_t size);

#endif
