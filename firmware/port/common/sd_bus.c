/*
 * sd_bus.c - single exchanges with an SD card in SPI mode: commands, data
 * blocks, and the search for a token or the end of busy.
 *
 * State: struct sd_bus, one exchange at a time. `then` is the function that the
 * next interrupt calls, from DMA (card_exchanged) or from the timer
 * (card_alarm). It is set before the exchange or the timer starts, because the
 * interrupt may come at once. The other function pointers are valid until the
 * end of the operation that has set them.
 */
#include "sd_bus.h"

#include <string.h>

#include "chip.h"
#include "poet/records.h"

enum {
  /* lowest index, in the received bytes, at which a response may begin: one
   * byte 0xff and the six bytes of the command are sent before it */
  RESPONSE_AT = 7,
  /* bytes of a command's exchange: RESPONSE_AT bytes, N_CR of up to 8 bytes,
   * and the response */
  COMMAND_SIZE = 17,
  CRC_SIZE = 2,
  LOOK = 8,          /* bytes of one poll for a token or the end of busy */
  READ_LOOK_US = 30, /* pause between two polls for a token */
  BUSY_LOOK_US = 80, /* pause between two polls for busy */
  READ_LIMIT_US = 300 * 1000, /* the specification says 100 ms ... */
  BUSY_LIMIT_US = 800 * 1000, /* ... and 250 ms, 500 for some cards */
  TOKEN_BLOCK = 0xfe,
};

struct sd_bus sd_bus;

void card_exchanged(void) {
  sd_bus.then();
}

void card_alarm(void) {
  sd_bus.then();
}

void sd_exchange(uint32_t size, sd_step *then) {
  sd_bus.then = then;
  chip_spi_exchange(sd_bus.out, sd_bus.in, size, 0);
}

void sd_after(uint32_t us, sd_step *then) {
  sd_bus.then = then;
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

/* The response begins at the first byte with bit 7 clear (7.3.2.1). */
static void response(void) {
  uint32_t at = RESPONSE_AT;
  if (sd_bus.out[1] == (0x40 | SD_STOP)) {
    at++; /* skip the stuff byte (7.5.2.3) */
  } else if (sd_bus.in[at - 1] != 0xff) {
    at = COMMAND_SIZE; /* busy: zeros do not answer */
  }
  while (at < COMMAND_SIZE && (sd_bus.in[at] & 0x80)) {
    at++;
  }
  sd_bus.r1 = at < COMMAND_SIZE ? sd_bus.in[at] : 0xff;
  for (uint32_t i = 0; i < sizeof sd_bus.tail; i++) {
    sd_bus.tail[i] = at + 1 + i < SD_CHUNK ? sd_bus.in[at + 1 + i] : 0xff;
  }
  sd_bus.at = (uint8_t)(at < COMMAND_SIZE ? at + 1 : COMMAND_SIZE);
  sd_bus.end = COMMAND_SIZE;
  sd_bus.answered();
}

static void send_command(void) {
  const bool is_long = sd_bus.out[1] == (0x40 | SD_IF_COND);
  sd_exchange(is_long ? SD_CHUNK : COMMAND_SIZE, response);
}

/* Report from a timer interrupt that the card stays busy: a direct call from
 * `search` would need more stack. */
static void stays_busy(void) {
  sd_bus.r1 = 0xff;
  sd_after(1, sd_bus.answered);
}

/* Exchange one free byte, six bytes of command, and as many bytes as the
 * longest response needs. A busy card ignores commands, so wait first. Only
 * CMD0 and CMD12 are sent to a card in any state. */
void sd_command(uint8_t index, uint32_t argument, sd_step *answered) {
  memset(sd_bus.out, 0xff, sizeof sd_bus.out);
  sd_bus.out[1] = (uint8_t)(0x40 | index);
  for (int i = 0; i < 4; i++) {
    sd_bus.out[2 + i] = (uint8_t)(argument >> (24 - 8 * i));
  }
  sd_bus.out[6] = (uint8_t)(crc7(sd_bus.out + 1, 5) | 1);
  sd_bus.answered = answered;
  if (index == SD_GO_IDLE || index == SD_STOP) {
    send_command();
  } else {
    sd_wait(true, send_command, stays_busy);
  }
}

/* -- polling for a token, or for the end of busy -- */

static void look(void);

/* Search the received bytes that are not used yet. A token is a byte other than
 * 0xff. The end of busy is a byte 0xff. */
static void search(void) {
  while (sd_bus.at < sd_bus.end &&
         (sd_bus.in[sd_bus.at] == 0xff) == (sd_bus.token != 0)) {
    sd_bus.at++;
  }
  if (sd_bus.at < sd_bus.end && sd_bus.token &&
      sd_bus.in[sd_bus.at] != sd_bus.token) {
    sd_bus.failed(); /* an error token */
  } else if (sd_bus.at < sd_bus.end) {
    sd_bus.at++;
    sd_bus.found();
  } else if (chip_ticks() - sd_bus.since > sd_bus.limit_us) {
    sd_bus.failed();
  } else {
    sd_after(sd_bus.token ? READ_LOOK_US : BUSY_LOOK_US, look);
  }
}

static void looked(void) {
  sd_bus.at = 0;
  sd_bus.end = LOOK;
  search();
}

/* Do not use `out`: it may hold a command that is still to be sent. */
static void look(void) {
  sd_bus.then = looked;
  chip_spi_exchange(NULL, sd_bus.in, LOOK, 0);
}

static void await(uint8_t token, uint32_t limit_us, sd_step *found,
                  sd_step *failed) {
  sd_bus.token = token;
  sd_bus.limit_us = limit_us;
  sd_bus.since = chip_ticks();
  sd_bus.found = found;
  sd_bus.failed = failed;
}

void sd_wait(bool at_once, sd_step *found, sd_step *failed) {
  await(0, BUSY_LIMIT_US, found, failed);
  if (at_once) {
    look();
  } else {
    sd_after(BUSY_LOOK_US, look);
  }
}

/* -- data: the first bytes may arrive in the same exchange as the token -- */

static void crc_came(void) {
  const uint16_t sent = (uint16_t)(sd_bus.in[0] << 8 | sd_bus.in[1]);
  if (sent != sd_bus.crc) {
    sd_bus.failed();
  } else {
    sd_bus.came();
  }
}

static void data_came(void) {
  sd_bus.crc = chip_spi_crc();
  sd_bus.at = CRC_SIZE; /* the token of the next block may follow at once */
  sd_bus.end = sd_bus.more ? CRC_SIZE + LOOK : CRC_SIZE;
  memset(sd_bus.out, 0xff, CRC_SIZE + LOOK);
  sd_exchange(sd_bus.end, crc_came);
}

static void token_came(void) {
  const uint32_t have = (uint32_t)(sd_bus.end - sd_bus.at);
  memcpy(sd_bus.into, sd_bus.in + sd_bus.at, have);
  sd_bus.then = data_came;
  chip_spi_exchange(NULL, sd_bus.into + have, POET_BLOCK - have,
                    crc16(0, sd_bus.into, have));
  sd_bus.meanwhile();
}

void sd_receive(uint8_t *into, bool more, sd_step *meanwhile, sd_step *came,
                sd_step *failed) {
  sd_bus.into = into;
  sd_bus.more = more;
  sd_bus.meanwhile = meanwhile;
  sd_bus.came = came;
  await(TOKEN_BLOCK, READ_LIMIT_US, token_came, failed);
  search();
}

/* Receive the rest of the register. The CRC over all bytes of the register and
 * the CRC that follows them must be 0. */
static void register_came(void) {
  sd_bus.crc = crc16(sd_bus.crc, sd_bus.into, sd_bus.size);
  if (sd_bus.rest) {
    sd_bus.rest--;
    sd_bus.into = sd_bus.in;
    sd_bus.size = SD_CHUNK;
    chip_spi_exchange(NULL, sd_bus.in, SD_CHUNK, 0);
  } else if (sd_bus.crc) {
    sd_bus.failed();
  } else {
    sd_bus.came();
  }
}

/* Let an interrupt call register_came, at the end of an exchange: a direct call
 * would need more stack. */
static void register_token(void) {
  uint32_t have = (uint32_t)(sd_bus.end - sd_bus.at);
  if (have > sd_bus.size) {
    have = sd_bus.size;
  }
  memcpy(sd_bus.into, sd_bus.in + sd_bus.at, have);
  sd_bus.then = register_came;
  if (have < sd_bus.size) {
    chip_spi_exchange(NULL, sd_bus.into + have, sd_bus.size - have, 0);
  } else {
    chip_spi_exchange(NULL, sd_bus.in, 1, 0);
  }
}

void sd_register(uint8_t *into, uint8_t size, sd_step *came, sd_step *failed) {
  sd_bus.into = into;
  sd_bus.crc = 0;
  for (sd_bus.rest = 0; size > SD_CHUNK; size -= SD_CHUNK) {
    sd_bus.rest++;
  }
  sd_bus.size = size + CRC_SIZE;
  sd_bus.came = came;
  await(TOKEN_BLOCK, READ_LIMIT_US, register_token, failed);
  search();
}
