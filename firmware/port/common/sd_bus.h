/*
 * sd_bus.h - single exchanges with an SD card (SD Physical Layer Specification,
 * chapter 7). A function starts an exchange and returns. The interrupt at its
 * end calls the wire_step that the function was given.
 */
#ifndef POET_SD_BUS_H
#define POET_SD_BUS_H

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
  uint8_t r1;      /* response to the last command; 0xff: none */
  uint8_t tail[4]; /* bytes after r1 in a long response */
  uint8_t out[WIRE_CHUNK], in[WIRE_CHUNK];

  wire_step *then; /* called by the next interrupt */
  wire_step *answered, *found, *meanwhile, *came, *failed;
  uint8_t token;      /* token to search for; 0: the end of busy */
  uint8_t at, end;    /* unused bytes of `in` */
  bool more;          /* another block may follow at once */
  uint16_t size, crc; /* of the data block; CRC-16 of what has arrived */
  uint8_t *into;
  uint32_t since, limit_us; /* start of the search, and its time limit */
} wire;

/* Exchange the first `size` bytes of `out`. */
void wire_exchange(uint32_t size, wire_step *then);
/* Call `then` after a pause. */
void wire_after(uint32_t us, wire_step *then);
/* Send a command; `answered` finds the response in r1 and tail. */
void wire_command(uint8_t index, uint32_t argument, wire_step *answered);
/* Wait for a data block and receive it. `meanwhile`, unless NULL, is called
 * while DMA moves its bytes. `failed` is called instead of `came` after an
 * error token, a wrong CRC, or when the card's time limit has passed. */
void wire_receive(uint8_t *into, uint16_t size, bool more, wire_step *meanwhile,
                  wire_step *came, wire_step *failed);
/* Wait for the end of busy; poll at once, or after a pause. */
void wire_wait(bool at_once, wire_step *found, wire_step *failed);

#endif
