/*
 * wire.h - one exchange with an SD card after the other (SD Physical Layer
 * Specification, chapter 7). Every function starts something and names the
 * step that its end, an interrupt, goes on with.
 */
#ifndef POET_WIRE_H
#define POET_WIRE_H

#include <stdbool.h>
#include <stdint.h>

enum {
  WIRE_CHUNK = 24, /* bytes of a short exchange */
  WIRE_GO_IDLE = 0,
  WIRE_IF_COND = 8,
  WIRE_CSD = 9,
  WIRE_CID = 10,
  WIRE_STOP = 12,
  WIRE_READ_MANY = 18,
  WIRE_WRITE_MANY = 25,
  WIRE_OP_COND = 41,
  WIRE_APPLICATION = 55,
  WIRE_OCR = 58,
  WIRE_CRC = 59,
};

typedef void wire_step(void);

extern struct wire {
  uint8_t r1;      /* of the last command; 0xff: no response */
  uint8_t tail[4]; /* what follows r1 in a long response */
  uint8_t out[WIRE_CHUNK], in[WIRE_CHUNK];

  wire_step *then, *answered, *found, *meanwhile, *came, *failed;
  uint8_t token;   /* what is looked for; 0: the end of busy */
  uint8_t at, end; /* bytes of `in` not yet looked at */
  bool more;       /* another block may follow at once */
  uint16_t size, crc;
  uint8_t *into;
  uint32_t since, limit_us;
} wire;

/* Exchange the first bytes of `out`. */
void wire_exchange(uint32_t size, wire_step *then);
/* Let time pass. */
void wire_after(uint32_t us, wire_step *then);
/* A command, and what the card says to it. */
void wire_command(uint8_t index, uint32_t argument, wire_step *answered);
/* Wait for a data block and fetch it; call `meanwhile`, if there is one, while
 * its bytes come. `failed` instead of `came`: an error token, a wrong CRC, or
 * nothing within the time that the card has. */
void wire_receive(uint8_t *into, uint16_t size, bool more, wire_step *meanwhile,
                  wire_step *came, wire_step *failed);
/* Wait for the end of busy, looking at once or a while later. */
void wire_wait(bool at_once, wire_step *found, wire_step *failed);

#endif
