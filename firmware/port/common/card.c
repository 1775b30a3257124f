/*
 * card.c - an SD card in SPI mode: initialisation, and jobs of many blocks. The
 * sections are those of the SD Physical Layer Specification.
 *
 * Each function starts one exchange and names the function that its interrupt
 * calls next (sd_bus.h). A job passes through them in this order:
 *
 *   card_start -> initialise -> ... -> cid_came -> next_block   if not ready
 *   card_start -> start_transfer -> transfer_block ... -> stop -> end
 *   first error: give_up -> initialise -> ..., then from block `index` again
 *
 * State: struct card. `job`, `index`, `started` and `retried` are valid from
 * card_start to the job's `ended`. The other fields describe the card that was
 * initialised last and stay for later jobs.
 *
 * Why a written block is safe: a block has passed only after the card accepted
 * it and is no longer busy, and a job ends only after the busy time of its stop
 * token. Before any write after an error, the CID is compared, so that a card
 * that was swapped is never written.
 */
#include "card.h"

#include <string.h>

#include "chip.h"
#include "poet/records.h"
#include "sd_bus.h"

enum {
  IDLE_LIMIT_US = 300 * 1000,
  INIT_LIMIT_US = 1500 * 1000,
  R1_IDLE = 1,
  R1_ILLEGAL = 4,
  TOKEN_MANY = 0xfc,
  TOKEN_STOP = 0xfd,
  DATA_ACCEPTED = 5,
  DATA_MASK = 0x1f,
  REGISTER = 16,
};

static struct {
  const struct card_job *job; /* NULL: none runs */
  uint32_t index;             /* block of the job that is being moved */
  bool started;               /* a multi-block transfer runs on the card */
  bool retried;               /* the job has been restarted once */
  bool ready;                 /* the card is initialised */
  bool version2, high_capacity;
  uint8_t known_cid[REGISTER]; /* of the card that was mounted */
  uint8_t bytes[REGISTER];     /* CSD, then CID, as received */
  uint32_t blocks;             /* capacity; 0: no card */
  uint32_t since;              /* start of the initialisation: ticks */
} card;

static void give_up(void);
static void next_block(void);

/* -- initialisation (7.2.1, 7.2.2) -- */

static void enter_idle(void);
static void ask_ready(void);

/* A mount accepts any card. A job accepts only the card that was mounted. */
static void cid_came(void) {
  const bool other = memcmp(card.bytes, card.known_cid, REGISTER) != 0;
  if (!card.job->count) {
    memcpy(card.known_cid, card.bytes, REGISTER);
  } else if (other) {
    card.retried = true; /* no second attempt: the card was swapped */
    give_up();
    return;
  }
  card.ready = true;
  next_block();
}

static void cid_answered(void) {
  if (sd_bus.r1) {
    give_up();
  } else {
    sd_receive(card.bytes, REGISTER, false, NULL, cid_came, give_up);
  }
}

/* Capacity in blocks of 512 bytes, from the CSD register (5.3). */
static uint32_t csd_blocks(const uint8_t *csd) {
  if (csd[0] >> 6) { /* version 2 */
    const uint32_t size =
        (uint32_t)(csd[7] & 63) << 16 | (uint32_t)csd[8] << 8 | csd[9];
    return (size + 1) * 1024;
  }
  const uint32_t size =
      (uint32_t)(csd[6] & 3) << 10 | (uint32_t)csd[7] << 2 | csd[8] >> 6;
  const uint32_t multiplier = (uint32_t)(csd[9] & 3) << 1 | csd[10] >> 7;
  const uint32_t length = csd[5] & 15; /* READ_BL_LEN */
  return length < 9 ? 0 : (size + 1) << (multiplier + 2 + length - 9);
}

static void csd_came(void) {
  card.blocks = csd_blocks(card.bytes);
  sd_command(SD_CID, 0, cid_answered);
}

static void csd_answered(void) {
  if (sd_bus.r1) {
    give_up();
  } else {
    sd_receive(card.bytes, REGISTER, false, NULL, csd_came, give_up);
  }
}

static void capacity_known(void) {
  card.high_capacity = (sd_bus.tail[0] & 0x40) != 0;
  if (sd_bus.r1 & ~R1_IDLE) { /* some cards still report idle here */
    give_up();
  } else {
    chip_spi_speed(true);
    sd_command(SD_CSD, 0, csd_answered);
  }
}

static void crc_is_on(void) {
  if (sd_bus.r1) {
    give_up();
  } else {
    sd_command(SD_OCR, 0, capacity_known);
  }
}

static void asked_ready(void) {
  if (sd_bus.r1 == 0) {
    sd_command(SD_CRC, 1, crc_is_on);
  } else if (sd_bus.r1 != R1_IDLE ||
             chip_ticks() - card.since > INIT_LIMIT_US) {
    give_up();
  } else {
    sd_after(1000, ask_ready);
  }
}

static void application(void) {
  sd_command(SD_OP_COND, card.version2 ? 1u << 30 : 0, asked_ready);
}

static void ask_ready(void) {
  sd_command(SD_APPLICATION, 0, application);
}

static void version_known(void) {
  card.version2 = !(sd_bus.r1 & R1_ILLEGAL);
  if (card.version2 && (sd_bus.tail[2] & 15) != 1) {
    give_up(); /* the card does not support this voltage */
  } else {
    ask_ready();
  }
}

static void idle_entered(void) {
  if (sd_bus.r1 == R1_IDLE) {
    sd_command(SD_IF_COND, 0x1aa, version_known);
  } else if (chip_ticks() - card.since > IDLE_LIMIT_US) {
    give_up();
  } else {
    enter_idle();
  }
}

static void clocks_given(void) {
  chip_spi_select(true);
  sd_command(SD_GO_IDLE, 0, idle_entered);
}

/* At least 74 clocks while not selected, then CMD0. */
static void enter_idle(void) {
  chip_spi_select(false);
  memset(sd_bus.out, 0xff, sizeof sd_bus.out);
  sd_exchange(SD_CHUNK, clocks_given);
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

/* After the first error of a job, initialise the card and continue. After the
 * second, the job fails. A job that only initialises fails at once. */
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
  sd_wait(true, stopped, give_up);
}

/* End a multi-block transfer after its last block. */
static void stop(void) {
  if (card.job->write) {
    sd_bus.out[0] = TOKEN_STOP;
    sd_bus.out[1] = 0xff;
    sd_exchange(2, stop_asked);
  } else {
    sd_command(SD_STOP, 0, stop_asked);
  }
}

static void passed(void) {
  if (card.job->passed(card.index++)) {
    next_block();
  } else {
    stop();
  }
}

static void data_answered(void) {
  if ((sd_bus.in[2] & DATA_MASK) == DATA_ACCEPTED) {
    sd_wait(false, passed, give_up);
  } else {
    give_up();
  }
}

static void data_sent(void) {
  const uint16_t crc = chip_spi_crc();
  sd_bus.out[0] = (uint8_t)(crc >> 8);
  sd_bus.out[1] = (uint8_t)crc;
  sd_bus.out[2] = 0xff;
  sd_exchange(3, data_answered);
}

static void token_sent(void) {
  sd_bus.then = data_sent; /* before the exchange: its interrupt calls it */
  chip_spi_exchange(card.job->place(card.index), NULL, POET_BLOCK, 0);
  card.job->meanwhile(card.index + 1);
}

static void data_comes(void) {
  card.job->meanwhile(card.index);
}

static void transfer_block(void) {
  if (card.job->write) {
    sd_bus.out[0] = 0xff;
    sd_bus.out[1] = TOKEN_MANY;
    sd_exchange(2, token_sent);
  } else {
    sd_receive(card.job->place(card.index), POET_BLOCK,
               card.index + 1 < card.job->count, data_comes, passed, give_up);
  }
}

static void transfer_answered(void) {
  if (sd_bus.r1) {
    give_up();
  } else {
    transfer_block();
  }
}

static void start_transfer(void) {
  const uint32_t block = card.job->block + card.index;
  card.started = true;
  sd_command(card.job->write ? SD_WRITE_MANY : SD_READ_MANY,
             card.high_capacity ? block : block * POET_BLOCK,
             transfer_answered);
}

static void next_block(void) {
  if (card.index < card.job->count) {
    if (card.started) {
      transfer_block();
    } else {
      start_transfer();
    }
  } else if (card.started) {
    stop();
  } else {
    end(0);
  }
}

void card_start(const struct card_job *job) {
  card.job = job;
  card.index = 0;
  card.retried = card.started = false;
  if (card.ready && job->count) {
    chip_spi_select(true);
    start_transfer();
  } else {
    initialise();
  }
}

uint32_t card_blocks(void) {
  return card.blocks;
}
