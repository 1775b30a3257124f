/*
 * sd_bus.c - single exchanges with an SD card in SPI mode: commands, data blocks,
 * and the search for a token or the end of busy.
 *
 * State: struct wire, one exchange at a time. `then` is what the next interrupt
 * calls, from DMA (card_exchanged) or timer (card_alarm). It is set before the
 * exchange or the timer starts, because the interrupt may come at once. The
 * other function pointers stay valid until the operation that set them ends.
 */
#include "sd_bus.h"

#include <string.h>

#include "chip.h"

enum {
  RESPONSE_AT = 7,   /* after one free byte and the command's six */
  COMMAND_SIZE = 17, /* those, N_CR of up to eight bytes, the response */
  CRC_SIZE = 2,
  LOOK = 8,          /* bytes exchanged to poll for a token or for busy */
  READ_LOOK_US = 30, /* pause between two polls for a token */
  BUSY_LOOK_US = 80, /* pause between two polls for busy */
  READ_LIMIT_US = 300 * 1000, /* the specification says 100 ms ... */
  BUSY_LIMIT_US = 800 * 1000, /* ... and 250 ms, 500 for some cards */
  TOKEN_BLOCK = 0xfe,
};

struct wire wire;

void card_exchanged(void) {
  wire.then();
}

void card_alarm(void) {
  wire.then();
}

void wire_exchange(uint32_t size, wire_step *then) {
  wire.then = then;
  chip_spi_exchange(wire.out, wire.in, size, 0);
}

void wire_after(uint32_t us, wire_step *then) {
  wire.then = then;
  chip_alarm(us);
}

static uint16_t crc16(uint16_t crc, const uint8_t *data, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    uint16_t t = (uint16_t)((crc >> 8 ^ data[i]) & 0xff);
    t = (uint16_t)(t ^ t >> 4);
    crc = (uint16_t)(crc << 8 ^ t << 12 ^ t << 5 ^ t);
  }
  return crc;
}

static uint8_t crc7(const uint8_t *data, uint32_t size) {
  uint8_t crc = 0;
  for (uint32_t i = 0; i < size; i++) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; bit++) {
      crc = (uint8_t)(crc << 1 ^ (crc & 0x80 ? 0x12 : 0));
    }
  }
  return crc;
}

/* -- commands -- */

/* The response begins at the first byte with bit 7 clear. */
static void response(void) {
  uint32_t at = RESPONSE_AT;
  if (wire.out[1] == (0x40 | WIRE_STOP)) {
    at++; /* skip the stuff byte (7.5.2.3) */
  }
  while (at < COMMAND_SIZE && (wire.in[at] & 0x80)) {
    at++;
  }
  wire.r1 = at < COMMAND_SIZE ? wire.in[at] : 0xff;
  for (uint32_t i = 0; i < sizeof wire.tail; i++) {
    wire.tail[i] = at + 1 + i < WIRE_CHUNK ? wire.in[at + 1 + i] : 0xff;
  }
  wire.at = (uint8_t)(at < COMMAND_SIZE ? at + 1 : COMMAND_SIZE);
  wire.end = COMMAND_SIZE;
  wire.answered();
}

/* One free byte, six bytes of command, and space for the longest response. */
void wire_command(uint8_t index, uint32_t argument, wire_step *answered) {
  const bool is_long = index == WIRE_IF_COND || index == WIRE_OCR;
  memset(wire.out, 0xff, sizeof wire.out);
  wire.out[1] = (uint8_t)(0x40 | index);
  for (int i = 0; i < 4; i++) {
    wire.out[2 + i] = (uint8_t)(argument >> (24 - 8 * i));
  }
  wire.out[6] = (uint8_t)(crc7(wire.out + 1, 5) | 1);
  wire.answered = answered;
  wire_exchange(is_long ? WIRE_CHUNK : COMMAND_SIZE, response);
}

/* -- polling for a token, or for the end of busy -- */

static void look(void);

/* Search the bytes that were received and not yet used. */
static void search(void) {
  const uint8_t idle = wire.token ? 0xff : 0;
  while (wire.at < wire.end && wire.in[wire.at] == idle) {
    wire.at++;
  }
  if (wire.at < wire.end && wire.token && wire.in[wire.at] != wire.token) {
    wire.failed(); /* an error token */
  } else if (wire.at < wire.end) {
    wire.at++;
    wire.found();
  } else if (chip_ticks() - wire.since > wire.limit_us) {
    wire.failed();
  } else {
    wire_after(wire.token ? READ_LOOK_US : BUSY_LOOK_US, look);
  }
}

static void looked(void) {
  wire.at = 0;
  wire.end = LOOK;
  search();
}

static void look(void) {
  memset(wire.out, 0xff, LOOK);
  wire_exchange(LOOK, looked);
}

static void await(uint8_t token, uint32_t limit_us, wire_step *found,
                  wire_step *failed) {
  wire.token = token;
  wire.limit_us = limit_us;
  wire.since = chip_ticks();
  wire.found = found;
  wire.failed = failed;
}

void wire_wait(bool at_once, wire_step *found, wire_step *failed) {
  await(0, BUSY_LIMIT_US, found, failed);
  if (at_once) {
    look();
  } else {
    wire_after(BUSY_LOOK_US, look);
  }
}

/* -- a data block: its first bytes may have come together with its token -- */

static void crc_came(void) {
  const uint16_t sent = (uint16_t)(wire.in[0] << 8 | wire.in[1]);
  if (sent != wire.crc) {
    wire.failed();
  } else {
    wire.came();
  }
}

static void data_came(void) {
  wire.crc = chip_spi_crc();
  wire.at = CRC_SIZE; /* the next token may follow the CRC at once */
  wire.end = wire.more ? CRC_SIZE + LOOK : CRC_SIZE;
  memset(wire.out, 0xff, CRC_SIZE + LOOK);
  wire_exchange(wire.end, crc_came);
}

static void token_came(void) {
  const uint32_t have = (uint32_t)(wire.end - wire.at);
  memcpy(wire.into, wire.in + wire.at, have);
  wire.then = data_came;
  chip_spi_exchange(NULL, wire.into + have, wire.size - have,
                    crc16(0, wire.into, have));
  if (wire.meanwhile) {
    wire.meanwhile();
  }
}

void wire_receive(uint8_t *into, uint16_t size, bool more, wire_step *meanwhile,
                  wire_step *came, wire_step *failed) {
  wire.into = into;
  wire.size = size;
  wire.more = more;
  wire.meanwhile = meanwhile;
  wire.came = came;
  await(TOKEN_BLOCK, READ_LIMIT_US, token_came, failed);
  search();
}
