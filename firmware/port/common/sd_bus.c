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

#include <stddef.h>
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
  LOOK = 8,       /* bytes of one poll for the end of busy or a register */
  NEXT_LOOK = 24, /* bytes of one poll for a block, after the first poll */
  MOST_LOOK = 200,
  SPARE_LOOK = 8,             /* data bytes that a poll for a block may bring */
  BUSY_LOOK_US = 60,          /* least pause between two polls for busy */
  WAITED_PART = 16,           /* longest pause: 1 / this of the time waited */
  MOST_PAUSE_US = 20 * 1000,  /* before the first poll for busy */
  LONGER_US = 16,             /* change of that pause for each poll in vain */
  SHORTER_US = 64,            /* its change if the first poll had success */
  MOST_MISSES = 4,            /* polls in vain that count: the card may stall */
  READ_LIMIT_US = 300 * 1000, /* the specification says 100 ms ... */
  BUSY_LIMIT_US = 800 * 1000, /* ... and 250 ms, 500 for some cards */
  TOKEN_BLOCK = 0xfe,
  R1_CRC_ERROR = 8,
};

struct sd_bus sd_bus;

static void search(void);

/* A step that wants a search sets `searches`: to call the search from here
 * needs less stack. */
static void step(void) {
  sd_bus.moved = true;
  sd_bus.then();
  if (sd_bus.searches) {
    sd_bus.searches = false;
    search();
  }
}

void card_exchanged(void) {
  step();
}

void card_alarm(void) {
  step();
}

void sd_exchange(uint32_t size, sd_step *then) {
  sd_bus.then = then;
  chip_spi_exchange(sd_bus.out, sd_bus.in, size);
}

void sd_after(uint32_t us, sd_step *then) {
  sd_bus.then = then;
  chip_alarm(us);
}

/* Continue a CRC-16. It is in the upper half of a word, so that a shift drops
 * what leaves it. */
static uint16_t crc16(uint16_t crc, const uint8_t *data, uint32_t size) {
  uint32_t high = (uint32_t)crc << 16;
  for (uint32_t i = 0; i < size; i++) {
    uint32_t t = high >> 24 ^ data[i];
    t ^= t >> 4;
    high = high << 8 ^ t << 28 ^ t << 21 ^ t << 16;
  }
  return (uint16_t)(high >> 16);
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

void sd_crc_failed(void) {
  if (sd_bus.noise <= SD_NOISE_ERROR) {
    sd_bus.noise += SD_NOISE_ERROR;
  }
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
  if (!(sd_bus.r1 & 0x80) && (sd_bus.r1 & R1_CRC_ERROR)) {
    sd_crc_failed();
  }
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
    sd_wait(send_command, stays_busy);
  }
}

/* -- polling for a token, or for the end of busy -- */

static void look(void);

/* After a look in vain, look again. A card that is busy for long is polled less
 * often, because each poll takes cycles from the computation. */
static void look_again(void) {
  const uint32_t now = chip_ticks();
  if (!sd_bus.looks) {
    sd_bus.since = now;
  }
  sd_bus.looks += sd_bus.looks < UINT8_MAX;
  const uint32_t waited_us = now - sd_bus.since;
  const uint32_t pause_us = waited_us / WAITED_PART;
  if (waited_us > sd_bus.limit_us) {
    sd_bus.failed();
  } else if (sd_bus.token) {
    look();
  } else {
    sd_after(pause_us > BUSY_LOOK_US ? pause_us : BUSY_LOOK_US, look);
  }
}

/* Skip words of ones, `count` at a time. `byte` is at a word. */
static inline const uint8_t *skip_words(const uint8_t *byte, const uint8_t *end,
                                        uint32_t count) {
  uint32_t words[4];
  const uint32_t size = count * sizeof *words;
  while ((uint32_t)(end - byte) >= size) {
    memcpy(words, __builtin_assume_aligned(byte, sizeof *words), size);
    uint32_t all = words[0];
    for (uint32_t i = 1; i < count; i++) {
      all &= words[i];
    }
    if (~all) {
      break;
    }
    byte += size;
  }
  return byte;
}

/* Skip bytes 0xff: the card is not ready yet. */
static void skip_ones(void) {
  const uint8_t *byte = sd_bus.seen + sd_bus.at;
  const uint8_t *end = sd_bus.seen + sd_bus.end;
  while (byte < end && *byte == 0xff) {
    byte++;
    if ((uintptr_t)byte % sizeof(uint32_t) == 0) {
      byte = skip_words(skip_words(byte, end, 4), end, 1);
    }
  }
  sd_bus.at = (uint8_t)(byte - sd_bus.seen);
}

/* Search the received bytes that are not used yet. A token is a byte other than
 * 0xff. Once a card is no longer busy, all its bytes are 0xff, so the last byte
 * shows the end of busy. */
static void search(void) {
  if (sd_bus.token) {
    skip_ones();
  } else if (sd_bus.seen[sd_bus.end - 1] != 0xff) {
    sd_bus.at = sd_bus.end;
  }
  if (sd_bus.at < sd_bus.end && sd_bus.token &&
      sd_bus.seen[sd_bus.at] != sd_bus.token) {
    sd_bus.failed(); /* an error token */
  } else if (sd_bus.at < sd_bus.end) {
    sd_bus.at++;
    sd_bus.found();
  } else {
    look_again();
  }
}

/* Do not use `out`: it may hold a command that is still to be sent. */
static void look(void) {
  sd_bus.at = 0;
  sd_bus.end = sd_bus.look;
  sd_bus.then = search;
  chip_spi_exchange(NULL, sd_bus.seen, sd_bus.look);
}

static void await(uint8_t token, uint32_t limit_us, sd_step *found,
                  sd_step *failed) {
  sd_bus.token = token;
  sd_bus.limit_us = limit_us;
  sd_bus.looks = 0;
  sd_bus.look = LOOK;
  sd_bus.seen = sd_bus.in;
  sd_bus.found = found;
  sd_bus.failed = failed;
}

void sd_wait(sd_step *found, sd_step *failed) {
  await(0, BUSY_LIMIT_US, found, failed);
  look();
}

/* Return the number of looks without success; a stall counts as a few. */
static uint32_t misses(uint32_t looks) {
  return looks < MOST_MISSES ? looks : MOST_MISSES;
}

/* Often, the first look should come shortly before the end of busy. */
static void programmed(void) {
  if (sd_bus.looks) {
    sd_bus.pause_us += (uint16_t)(LONGER_US * misses(sd_bus.looks));
  } else {
    sd_bus.pause_us -= SHORTER_US;
  }
  sd_bus.came();
}

void sd_wait_programmed(sd_step *came, sd_step *failed) {
  sd_bus.came = came;
  await(0, BUSY_LIMIT_US, programmed, failed);
  if (sd_bus.pause_us < BUSY_LOOK_US || sd_bus.pause_us > MOST_PAUSE_US) {
    sd_bus.pause_us = BUSY_LOOK_US; /* also if it has become negative */
  }
  sd_after(sd_bus.pause_us, look);
}

/* -- data: the first bytes may arrive in the same exchange as the token -- */

static void crc_came(void) {
  const uint16_t sent = (uint16_t)(sd_bus.seen[0] << 8 | sd_bus.seen[1]);
  if (sent != sd_bus.crc) {
    sd_crc_failed();
    sd_bus.failed();
  } else {
    sd_bus.came();
  }
}

/* The exchange of the CRC is also the first look for the next block. */
static void data_came(void) {
  sd_bus.at = sd_bus.end = CRC_SIZE;
  sd_bus.seen = sd_bus.in;
  if (sd_bus.next) {
    sd_bus.seen = sd_bus.next;
    sd_bus.end = (uint8_t)(CRC_SIZE + LOOK + sd_bus.usual_look);
  }
  sd_bus.then = crc_came;
  chip_spi_exchange(NULL, sd_bus.seen, sd_bus.end);
  sd_bus.crc = chip_spi_crc();
  if (chip_crc_excludes_blocks) {
    sd_bus.meanwhile();
  }
}

/* The first look for the next block should end shortly after its token. */
static void adapt_look(void) {
  if (sd_bus.looks) {
    sd_bus.usual_look += (uint8_t)(LOOK * misses(sd_bus.looks));
  } else {
    sd_bus.usual_look -= (uint8_t)((sd_bus.end - sd_bus.at) / SPARE_LOOK);
  }
  if (sd_bus.usual_look > MOST_LOOK) {
    sd_bus.usual_look = MOST_LOOK;
  }
}

static void token_came(void) {
  const uint32_t have = (uint32_t)(sd_bus.end - sd_bus.at);
  if (sd_bus.adapts) {
    adapt_look();
  }
  sd_bus.then = data_came;
  chip_spi_receive_block(sd_bus.into, sd_bus.seen + sd_bus.at, have);
  if (!chip_crc_excludes_blocks) {
    sd_bus.meanwhile();
  }
}

/* The bytes after the block before this one are in `into` already. Those after
 * a command's response are in `in`, which has less space. */
void sd_receive(uint8_t *into, uint8_t *next, sd_step *meanwhile, sd_step *came,
                sd_step *failed) {
  sd_bus.into = into;
  sd_bus.next = next;
  sd_bus.meanwhile = meanwhile;
  sd_bus.came = came;
  sd_bus.adapts = sd_bus.seen == into;
  await(TOKEN_BLOCK, READ_LIMIT_US, token_came, failed);
  sd_bus.seen = into;
  sd_bus.look = NEXT_LOOK;
  if (!sd_bus.adapts) {
    sd_bus.end = (uint8_t)(sd_bus.end - sd_bus.at);
    memcpy(into, sd_bus.in + sd_bus.at, sd_bus.end);
    sd_bus.at = 0;
  }
  sd_bus.searches = true;
}

/* Receive the rest of the register. The CRC over all bytes of the register and
 * the CRC that follows them must be 0. */
static void register_came(void) {
  sd_bus.crc = crc16(sd_bus.crc, sd_bus.into, sd_bus.size);
  if (sd_bus.rest) {
    sd_bus.rest--;
    sd_bus.into = sd_bus.in;
    sd_bus.size = SD_CHUNK;
    chip_spi_exchange(NULL, sd_bus.in, SD_CHUNK);
  } else if (sd_bus.crc) {
    sd_crc_failed();
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
    chip_spi_exchange(NULL, sd_bus.into + have, sd_bus.size - have);
  } else {
    chip_spi_exchange(NULL, sd_bus.in, 1);
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
  sd_bus.searches = true;
}
