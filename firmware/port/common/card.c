/*
 * card.c - jobs of many blocks on an SD card in SPI mode, and the handling of
 * their errors. The sections are those of the SD Physical Layer Specification.
 *
 * Each function starts one exchange and names the function that its interrupt
 * calls next (sd_bus.h). A job passes through them in this order:
 *
 *   card_start -> card_initialise -> ... -> card_begin   if not ready
 *   card_start -> start_transfer -> transfer_block ... -> stop -> end
 *   an error of a block: failed -> stop -> ... -> retry -> start_transfer
 *   any other error: card_give_up -> retry -> card_initialise -> ...
 *
 * State: struct card. The fields from `job` to `faulty` are valid from
 * card_start until the callback `ended` of the job is called. The other fields
 * describe the card that was initialised last. Later jobs use them too.
 *
 * Why a written block is safe: the card has accepted it and is no longer busy.
 * After the stop token, CMD13 has also reported no error of any block since
 * CMD25, the start of the write. If the card refuses a block, ACMD22 returns
 * the number of blocks that are written, and the job continues after them.
 * After any other error, the job starts again at the first block since CMD25.
 * If the card had to be initialised again, its CID is compared first, so that
 * the job never writes to another card.
 */
#include "card.h"

#include <string.h>

#include "card_parts.h"
#include "chip.h"
#include "poet/records.h"

enum {
  TOKEN_MANY = 0xfc,
  TOKEN_STOP = 0xfd,
  /* number of bytes exchanged to stop a write: one byte 0xff, the stop token,
   * and the delay N_BR of up to 8 bytes */
  STOP_SIZE = 10,
  DATA_ACCEPTED = 5,
  DATA_CRC_ERROR = 11,
  DATA_MASK = 0x1f,
  RETRIES = 3, /* of a block */
  /* a job has one more retry for each group of this many blocks */
  BLOCKS_PER_RETRY = 16,
};

struct card card;

void card_send_stop_token(sd_step *then) {
  memset(sd_bus.out, 0xff, sizeof sd_bus.out);
  sd_bus.out[1] = TOKEN_STOP;
  sd_exchange(STOP_SIZE, then);
}

static void end(int error) {
  const struct card_job *job = card.job;
  card.job = NULL;
  chip_spi_select(false);
  job->ended(error);
}

void card_lose(void) {
  card.about.slower = 0;
  card.about.is_ready = false;
  card.blocks = 0;
  card.about.allocation_mib = 0;
  end(-1);
}

static void start_transfer(void);

/* Use a slower clock after a second CRC error within SD_NOISE_ERROR blocks, or
 * after one while the card is mounted. Return false if the clock stays. */
static bool use_slower_clock(void) {
  const uint32_t most = card.job->count ? SD_NOISE_ERROR : 0;
  if (sd_bus.noise <= most || card.about.slower == CHIP_SPI_FASTEST - 1) {
    return false;
  }
  sd_bus.noise = 0;
  card.about.slower++;
  card.block_retries = 0;
  return true;
}

/* Continue at block `index`. From the second retry of a block on, initialise
 * the card first. A job that only initialises the card is not retried. */
static void retry(void) {
  const uint32_t count = card.job->count;
  if (card.index > card.failed_at) {
    card.block_retries = 0;
  }
  card.failed_at = card.index;
  card.faulty = false;
  if (use_slower_clock()) {
    card.about.retries++;
    card_initialise();
    return;
  }
  if (!count || card.block_retries == RETRIES ||
      card.job_retries >= RETRIES + count / BLOCKS_PER_RETRY) {
    card_lose();
    return;
  }
  card.block_retries++;
  card.job_retries++;
  card.about.retries++;
  if (card.about.is_ready && card.block_retries == 1) {
    start_transfer();
  } else {
    card_initialise();
  }
}

void card_give_up(void) {
  card.about.is_ready = false;
  if (card.job->write) {
    card.index = card.base;
  }
  retry();
}

/* Continue after the blocks that the card reports as written since CMD25. If
 * this number is too large to be right, write all of these blocks again. */
static void written_came(void) {
  const uint8_t *bytes = card.about.bytes;
  const uint32_t written = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 |
                           (uint32_t)bytes[2] << 8 | bytes[3];
  const uint32_t passed = card.index - card.base;
  card.index = card.base + (written <= passed ? written : 0);
  retry();
}

static void written_answered(void) {
  if (sd_bus.r1) {
    card_give_up();
  } else {
    sd_register(card.about.bytes, 4, written_came, card_give_up);
  }
}

static void ask_written(void) {
  sd_command(SD_WRITTEN, 0, written_answered);
}

/* CMD13 answers with R2: the byte after R1 has the errors of the write. If it
 * has an error although the card refused no block, any block since CMD25 may
 * have failed. */
static void status_came(void) {
  if (sd_bus.r1) {
    card_give_up();
  } else if (card.faulty) {
    sd_command(SD_APPLICATION, 0, ask_written);
  } else if (sd_bus.tail[0]) {
    card.index = card.base;
    retry();
  } else {
    end(0);
  }
}

static void ask_status(void) {
  sd_command(SD_STATUS, 0, status_came);
}

static void read_stopped(void) {
  if (card.faulty) {
    retry();
  } else {
    end(0);
  }
}

static void stop_asked(void) {
  sd_wait(card.job->write ? ask_status : read_stopped, card_give_up);
}

static void stop_command(void) {
  sd_command(SD_STOP, 0, stop_asked);
}

/* After a refused block, some cards ignore the stop token and understand only
 * CMD12 (7.3.3.1), so CMD12 follows the token. To the other cards, which the
 * token has stopped, CMD12 is only an illegal command. */
static void refused_stop_asked(void) {
  sd_wait(stop_command, card_give_up);
}

/* End a multi-block transfer after its last block, or after an error. */
static void stop(void) {
  if (!card.job->write) {
    stop_command();
  } else {
    card_send_stop_token(card.faulty ? refused_stop_asked : stop_asked);
  }
}

/* Block `index` has failed. */
static void failed(void) {
  card.faulty = true;
  stop();
}

static void transfer_block(void);

static void passed(void) {
  sd_bus.noise -= sd_bus.noise > 0;
  const bool more = card.job->passed(card.index++);
  if (more && card.index < card.job->count) {
    transfer_block();
  } else {
    stop();
  }
}

static void data_answered(void) {
  if ((sd_bus.in[2] & DATA_MASK) == DATA_ACCEPTED) {
    sd_wait_programmed(passed, card_give_up);
    card.job->meanwhile(card.index + 1);
  } else {
    if ((sd_bus.in[2] & DATA_MASK) == DATA_CRC_ERROR) {
      sd_crc_failed();
    }
    failed();
  }
}

static void data_sent(void) {
  const uint16_t crc = chip_spi_crc();
  sd_bus.out[0] = (uint8_t)(crc >> 8);
  sd_bus.out[1] = (uint8_t)crc;
  sd_bus.out[2] = 0xff;
  sd_exchange(3, data_answered);
}

static void data_comes(void) {
  card.job->meanwhile(card.index);
}

static void transfer_block(void) {
  if (card.job->write && !chip_supply_suffices()) {
    card_give_up(); /* the card might program a wrong block, or lose others */
    return;
  }
  uint8_t *place = card.job->place(card.index);
  if (!card.job->write) {
    uint8_t *next = card.index + 1 < card.job->count
                        ? card.job->place(card.index + 1)
                        : NULL;
    sd_receive(place, next == place ? NULL : next, data_comes, passed, failed);
    return;
  }
  /* Set `then` before the exchange starts: the interrupt at the end calls
   * `then`. */
  sd_bus.then = data_sent;
  chip_spi_send_block(TOKEN_MANY, place);
  if (!chip_crc_excludes_blocks) {
    card.job->meanwhile(card.index + 1);
  }
}

static void transfer_answered(void) {
  if (sd_bus.r1) {
    card_give_up();
  } else {
    transfer_block();
  }
}

static void send_transfer(void) {
  const uint32_t block = card.job->block + card.index;
  card.base = card.index;
  sd_command(card.job->write ? SD_WRITE_MANY : SD_READ_MANY,
             card.about.high_capacity ? block : block * POET_BLOCK,
             transfer_answered);
}

/* The announcement is only a hint: a card may not know ACMD23. */
static void announced(void) {
  if (sd_bus.r1 & ~R1_ILLEGAL) {
    card_give_up();
  } else {
    send_transfer();
  }
}

static void announce(void) {
  if (sd_bus.r1) {
    card_give_up();
  } else {
    sd_command(SD_ANNOUNCE, card.job->count - card.index, announced);
  }
}

/* A card that knows the number of blocks can erase them all before the write.
 * If the job ends sooner, the content of the others is lost: the owner of the
 * job writes them later, or does not use them. */
static void start_transfer(void) {
  if (card.job->write && card.job->count - card.index > 1) {
    sd_command(SD_APPLICATION, 0, announce);
  } else {
    send_transfer();
  }
}

void card_begin(void) {
  if (card.index < card.job->count) {
    start_transfer();
  } else {
    end(0);
  }
}

void card_start(const struct card_job *job) {
  card.job = job;
  card.index = card.base = card.failed_at = card.job_retries = 0;
  card.block_retries = 0;
  card.faulty = false;
  if (card.about.is_ready && job->count) {
    chip_spi_select(true);
    start_transfer();
  } else {
    card_initialise();
  }
}

uint32_t card_blocks(void) {
  return card.blocks;
}

uint32_t card_allocation_mib(void) {
  return card.about.allocation_mib;
}

uint32_t card_retries(void) {
  return card.about.retries;
}

uint16_t card_khz(void) {
  return card.about.is_ready ? card.about.khz : 0;
}

void card_report(void *context, struct poet_card *report) {
  (void)context;
  *report = card.about;
  report->command = sd_bus.out[1] & SD_COMMAND;
  report->response = sd_bus.r1;
  report->supply_is_low = !chip_supply_suffices();
}
