/* The protocol of chapter 7 of the SD Physical Layer Specification. Each step
 * is one exchange; `then` names what its end starts. */
#include <string.h>

#include "card.h"
#include "chip.h"
#include "poet/records.h"

enum {
  CHUNK = 24,        /* bytes of a short exchange */
  RESPONSE_AT = 7,   /* behind a free byte and the command's six */
  COMMAND_SIZE = 17, /* these, N_CR of up to eight, the response */
  CRC_SIZE = 2,
  LOOK = 8, /* bytes in which a token or the end of busy is looked for */
  READ_LOOK_US = 30, /* until it is looked for again */
  BUSY_LOOK_US = 80,
  READ_LIMIT_US = 300 * 1000, /* the specification says 100 ms ... */
  BUSY_LIMIT_US = 800 * 1000, /* ... and 250 ms, 500 for some cards */
  INIT_LIMIT_US = 1500 * 1000,
  R1_IDLE = 1,
  R1_ILLEGAL = 4,
  TOKEN_BLOCK = 0xfe,
  TOKEN_MANY = 0xfc,
  TOKEN_STOP = 0xfd,
  DATA_ACCEPTED = 5,
  DATA_MASK = 0x1f,
  REGISTER = 16,
  CSD = 9,
  CID = 10,
  STOP_TRANSMISSION = 12,
};

typedef void step(void);

static struct {
  const struct card_job *job;
  uint32_t index; /* block of the job that is on its way */
  bool started;   /* a multi-block transfer runs */
  bool retried, ready, version2, high_capacity;
  uint8_t known_cid[REGISTER], cid[REGISTER];
  uint32_t blocks;

  step *then;     /* after the exchange, or the alarm */
  step *answered; /* after a command's response */
  step *found;    /* after a token, or the end of busy */
  uint8_t token;  /* what is looked for; 0: the end of busy */
  uint32_t since, limit_us;
  uint8_t r1, tail[4];
  uint8_t at, end; /* bytes of `in` not yet looked at */
  uint8_t *into;   /* where a block goes, and */
  uint16_t size;   /* how long it is, */
  uint16_t crc;    /* and its CRC so far */
  uint8_t out[CHUNK], in[CHUNK];
} card;

static void give_up(void);
static void next_block(void);

/* -- exchanges -- */

void card_exchanged(void) {
  card.then();
}

static void exchange(uint32_t size, step *then) {
  card.then = then;
  chip_spi_exchange(card.out, card.in, size, 0);
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

static void response(void) {
  uint32_t at = RESPONSE_AT;
  if (card.out[1] == (0x40 | STOP_TRANSMISSION)) {
    at++; /* one byte of anything comes first (7.5.2.3) */
  }
  while (at < COMMAND_SIZE && (card.in[at] & 0x80)) {
    at++;
  }
  card.r1 = at < COMMAND_SIZE ? card.in[at] : 0xff;
  for (uint32_t i = 0; i < sizeof card.tail; i++) {
    card.tail[i] = at + 1 + i < CHUNK ? card.in[at + 1 + i] : 0xff;
  }
  card.at = (uint8_t)(at < COMMAND_SIZE ? at + 1 : COMMAND_SIZE);
  card.end = COMMAND_SIZE;
  card.answered();
}

/* Six bytes behind a free one, and room for the longest response. */
static void command(uint8_t index, uint32_t argument, step *answered) {
  memset(card.out, 0xff, sizeof card.out);
  card.out[1] = (uint8_t)(0x40 | index);
  for (int i = 0; i < 4; i++) {
    card.out[2 + i] = (uint8_t)(argument >> (24 - 8 * i));
  }
  card.out[6] = (uint8_t)(crc7(card.out + 1, 5) | 1);
  card.answered = answered;
  exchange(index == 8 || index == 58 ? CHUNK : COMMAND_SIZE, response);
}

/* -- looking for a token, or for the end of busy -- */

static void look(void);

static void look_again(void) {
  card.then = look;
  chip_alarm(card.token ? READ_LOOK_US : BUSY_LOOK_US);
}

/* Searches the bytes not yet looked at. */
static void search(void) {
  const uint8_t idle = card.token ? 0xff : 0;
  while (card.at < card.end && card.in[card.at] == idle) {
    card.at++;
  }
  if (card.at < card.end && card.token && card.in[card.at] != card.token) {
    give_up(); /* an error token */
  } else if (card.at < card.end) {
    card.at++;
    card.found();
  } else if (chip_ticks() - card.since > card.limit_us) {
    give_up();
  } else {
    look_again();
  }
}

static void looked(void) {
  card.at = 0;
  card.end = LOOK;
  search();
}

void card_alarm(void) {
  card.then();
}

static void look(void) {
  memset(card.out, 0xff, LOOK);
  exchange(LOOK, looked);
}

static void await(uint8_t token, uint32_t limit_us, step *found) {
  card.token = token;
  card.limit_us = limit_us;
  card.since = chip_ticks();
  card.found = found;
}

/* -- receiving a block: some bytes came with its token -- */

static void block_came(void);

static void crc_came(void) {
  const uint16_t sent = (uint16_t)(card.in[0] << 8 | card.in[1]);
  if (sent != card.crc) {
    give_up();
  } else {
    block_came();
  }
}

static void data_came(void) {
  card.crc = chip_spi_crc();
  const bool more = card.into != card.cid && card.index + 1 < card.job->count;
  card.at = CRC_SIZE; /* the next token may be there already */
  card.end = more ? CRC_SIZE + LOOK : CRC_SIZE;
  memset(card.out, 0xff, CRC_SIZE + LOOK);
  exchange(card.end, crc_came);
}

static void token_came(void) {
  const uint32_t have = (uint32_t)(card.end - card.at);
  memcpy(card.into, card.in + card.at, have);
  card.crc = crc16(0, card.into, have);
  card.then = data_came;
  chip_spi_exchange(NULL, card.into + have, card.size - have, card.crc);
}

static void receive(uint8_t *into, uint16_t size) {
  card.into = into;
  card.size = size;
  await(TOKEN_BLOCK, READ_LIMIT_US, token_came);
  search();
}

/* -- initialisation (7.2.1, 7.2.2) -- */

static void enter_idle(void);
static void ask_ready(void);

static void initialised(void) {
  const bool other = memcmp(card.cid, card.known_cid, REGISTER) != 0;
  card.ready = true;
  if (!card.job->count) {
    memcpy(card.known_cid, card.cid, REGISTER);
  } else if (other) {
    card.retried = true; /* never write on a card that was not mounted */
    give_up();
    return;
  }
  next_block();
}

static uint32_t csd_blocks(const uint8_t *csd) {
  if (csd[0] >> 6) {
    return (((uint32_t)(csd[7] & 63) << 16 | (uint32_t)csd[8] << 8 | csd[9]) +
            1) *
           1024;
  }
  const uint32_t size =
      (uint32_t)(csd[6] & 3) << 10 | (uint32_t)csd[7] << 2 | csd[8] >> 6;
  const uint32_t multiplier = (uint32_t)(csd[9] & 3) << 1 | csd[10] >> 7;
  return (size + 1) << (multiplier + 2 + (csd[5] & 15) - 9);
}

/* A register has come into `cid`: first the CSD, then the CID itself. */
static void register_answered(void) {
  if (card.r1) {
    give_up();
  } else {
    receive(card.cid, REGISTER);
  }
}

static void capacity_known(void) {
  card.high_capacity = (card.tail[0] & 0x40) != 0;
  if (card.r1 & ~R1_IDLE) { /* some cards still call themselves idle here */
    give_up();
    return;
  }
  chip_spi_speed(true);
  card.blocks = 0; /* says that the CSD comes first */
  command(CSD, 0, register_answered);
}

static void crc_is_on(void) {
  if (card.r1) {
    give_up();
  } else {
    command(58, 0, capacity_known);
  }
}

static void asked_ready(void) {
  if (card.r1 == 0) {
    command(59, 1, crc_is_on);
  } else if (card.r1 != R1_IDLE || chip_ticks() - card.since > INIT_LIMIT_US) {
    give_up();
  } else {
    card.then = ask_ready;
    chip_alarm(1000);
  }
}

static void application(void) {
  command(41, card.version2 ? 1u << 30 : 0, asked_ready);
}

static void ask_ready(void) {
  command(55, 0, application);
}

static void version_known(void) {
  card.version2 = !(card.r1 & R1_ILLEGAL);
  if (card.version2 && (card.tail[2] & 15) != 1) {
    give_up(); /* it does not take this voltage */
  } else {
    ask_ready();
  }
}

static void idle_entered(void) {
  if (card.r1 == R1_IDLE) {
    command(8, 0x1aa, version_known);
  } else if (chip_ticks() - card.since > READ_LIMIT_US) {
    give_up();
  } else {
    enter_idle();
  }
}

static void clocks_given(void) {
  chip_spi_select(true);
  command(0, 0, idle_entered);
}

/* 74 clocks and more without select, then CMD0. */
static void enter_idle(void) {
  chip_spi_select(false);
  memset(card.out, 0xff, sizeof card.out);
  exchange(CHUNK, clocks_given);
}

static void initialise(void) {
  card.ready = card.started = false;
  card.since = chip_ticks();
  chip_spi_speed(false);
  enter_idle();
}

/* -- jobs -- */

static void end(int error) {
  const struct card_job *job = card.job;
  card.job = NULL;
  chip_spi_select(false);
  job->ended(error);
}

/* Once more from an initialised card, then no more. */
static void give_up(void) {
  card.ready = false;
  if (card.retried || !card.job->count) {
    card.blocks = 0;
    end(-1);
  } else {
    card.retried = true;
    initialise();
  }
}

static void stopped(void) {
  end(0);
}

static void stop_asked(void) {
  await(0, BUSY_LIMIT_US, stopped);
  look();
}

/* The last block of a multi-block transfer is through. */
static void stop(void) {
  if (card.job->write) {
    memset(card.out, 0xff, 2);
    card.out[0] = TOKEN_STOP;
    exchange(2, stop_asked);
  } else {
    command(STOP_TRANSMISSION, 0, stop_asked);
  }
}

static void passed(void) {
  card.job->passed(card.index++);
  next_block();
}

static void block_came(void) {
  if (card.into != card.cid) {
    passed();
  } else if (!card.blocks) { /* it was the CSD */
    card.blocks = csd_blocks(card.cid);
    command(CID, 0, register_answered);
  } else {
    initialised();
  }
}

static void written(void) {
  passed();
}

static void data_answered(void) {
  if ((card.in[2] & DATA_MASK) != DATA_ACCEPTED) {
    give_up();
    return;
  }
  await(0, BUSY_LIMIT_US, written);
  look_again();
}

static void data_sent(void) {
  const uint16_t crc = chip_spi_crc();
  memset(card.out, 0xff, 3);
  card.out[0] = (uint8_t)(crc >> 8);
  card.out[1] = (uint8_t)crc;
  exchange(3, data_answered);
}

static void token_sent(void) {
  card.then = data_sent;
  chip_spi_exchange(card.job->place(card.index), NULL, POET_BLOCK, 0);
}

static void transfer_block(void) {
  if (card.job->write) {
    card.out[0] = 0xff;
    card.out[1] = TOKEN_MANY;
    exchange(2, token_sent);
  } else {
    receive(card.job->place(card.index), POET_BLOCK);
  }
}

static void transfer_answered(void) {
  if (card.r1) {
    give_up();
  } else {
    transfer_block();
  }
}

static void selected(void) {
  const uint32_t block = card.job->block + card.index;
  card.started = true;
  command(card.job->write ? 25 : 18,
          card.high_capacity ? block : block * POET_BLOCK, transfer_answered);
}

static void next_block(void) {
  if (card.index == card.job->count) {
    if (card.started) {
      stop();
    } else {
      end(0);
    }
  } else if (card.started) {
    transfer_block();
  } else {
    selected();
  }
}

void card_start(const struct card_job *job) {
  card.job = job;
  card.index = 0;
  card.retried = card.started = false;
  if (card.ready && job->count) {
    chip_spi_select(true);
    selected();
  } else {
    initialise();
  }
}

uint32_t card_blocks(void) {
  return card.blocks;
}
