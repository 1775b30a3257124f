/*
 * card_mount.c - bring the SD card from any state to the state in which it
 * executes jobs. The sections are those of the SD Physical Layer Specification.
 *
 * Each function starts one exchange and names the function that its interrupt
 * calls next (sd_bus.h). They run in this order, which is the reverse of the
 * order in the file:
 *
 *   card_initialise -> clocks_given -> stop_old_write -> go_idle (CMD0)
 *   -> ask_ready -> crc_sent -> cid_came -> unit_came -> csd_came -> card_begin
 *
 * Only a mount passes through unit_came. If it fails, unit_unknown initialises
 * the card once more. The CSD is read last, so that a host can read it too.
 *
 * State: struct card (card_parts.h). `since` is the start of the time limit of
 * CMD0, then of ACMD41.
 */
#include <string.h>

#include "card_parts.h"
#include "chip.h"

enum {
  IDLE_LIMIT_US = 300 * 1000,
  INIT_LIMIT_US = 1500 * 1000,
  R1_IDLE = 1,
  SD_STATUS_SIZE = 64,
};

static void enter_idle(void);
static void ask_ready(void);

/* Return the capacity, in blocks of 512 bytes, from the CSD register (5.3). */
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

/* A CSD register of version 2 means high capacity. The OCR register has the
 * same information, but without a CRC. */
static void csd_came(void) {
  card.about.high_capacity = card.about.bytes[0] >> 6 != 0;
  card.blocks = csd_blocks(card.about.bytes);
  card.about.is_ready = true;
  card_begin();
}

static void csd_answered(void) {
  if (sd_bus.r1) {
    card_give_up();
  } else {
    sd_register(card.about.bytes, REGISTER, csd_came, card_give_up);
  }
}

static void ask_csd(void) {
  sd_command(SD_CSD, 0, csd_answered);
}

/* Read AU_SIZE, bits 431 to 428 of the SD Status (4.10.2, table 4-46). */
static void unit_came(void) {
  static const uint8_t mib[16] = {
      0, 1, 1, 1,  1,  1,  1,  1, /* 16 KiB to 1 MiB */
      2, 4, 8, 12, 16, 24, 32, 64};
  card.about.allocation_mib = mib[card.about.bytes[10] >> 4];
  ask_csd();
}

/* The card may still send the SD Status, or not understand the next command. So
 * initialise it again, without ACMD13. */
static void unit_unknown(void) {
  card.job_retries = 1;
  card_initialise();
}

static void unit_answered(void) {
  if (sd_bus.r1) {
    unit_unknown();
  } else {
    sd_bus.at++; /* skip the second byte of R2 */
    sd_register(card.about.bytes, SD_STATUS_SIZE, unit_came, unit_unknown);
  }
}

static void ask_unit(void) {
  sd_command(SD_STATUS, 0, unit_answered);
}

/* A job without blocks mounts the card and accepts any card. Other jobs accept
 * only the card that was mounted. */
static void cid_came(void) {
  const bool other = memcmp(card.about.bytes, card.about.cid, REGISTER) != 0;
  const bool mounts = !card.job->count;
  if (mounts) {
    memcpy(card.about.cid, card.about.bytes, REGISTER);
    card.about.allocation_mib = 0;
  } else if (other) {
    card_lose();
    return;
  }
  if (mounts && !card.job_retries) {
    sd_command(SD_APPLICATION, 0, ask_unit);
  } else {
    ask_csd();
  }
}

static void cid_answered(void) {
  if (sd_bus.r1) {
    card_give_up();
  } else {
    sd_register(card.about.bytes, REGISTER, cid_came, card_give_up);
  }
}

/* Deselect the card and give it 8 clocks, so that it ignores whatever the pins
 * do while the SPI changes its speed. */
static void deselect(sd_step *then) {
  chip_spi_select(false);
  memset(sd_bus.out, 0xff, sizeof sd_bus.out);
  sd_exchange(1, then);
}

static void hurry(void) {
  card.about.khz = chip_spi_speed(CHIP_SPI_FASTEST - card.about.slower);
  chip_spi_select(true);
  sd_command(SD_CID, 0, cid_answered);
}

static void crc_is_on(void) {
  if (sd_bus.r1) {
    card_give_up();
  } else {
    deselect(hurry);
  }
}

/* CMD59 turns CRCs on. Until then, the card cannot detect that a command is
 * damaged, so CMD59 is sent twice. */
static void crc_sent(void) {
  sd_command(SD_CRC, 1, crc_is_on);
}

static void asked_ready(void) {
  if (sd_bus.r1 == 0) {
    sd_command(SD_CRC, 1, crc_sent);
  } else if (sd_bus.r1 != R1_IDLE ||
             chip_ticks() - card.since > INIT_LIMIT_US) {
    card_give_up();
  } else {
    sd_after(1000, ask_ready);
  }
}

static void application(void) {
  sd_command(SD_OP_COND, card.about.version2 ? 1u << 30 : 0, asked_ready);
}

static void ask_ready(void) {
  sd_command(SD_APPLICATION, 0, application);
}

static void version_known(void) {
  card.about.version2 = !(sd_bus.r1 & R1_ILLEGAL);
  if (card.about.version2 && (sd_bus.tail[2] & 15) != 1) {
    card_give_up(); /* the card does not support this voltage */
  } else {
    ask_ready();
  }
}

static void idle_entered(void) {
  if (sd_bus.r1 == R1_IDLE) {
    card.since = chip_ticks();
    sd_command(SD_IF_COND, 0x1aa, version_known);
  } else if (chip_ticks() - card.since > IDLE_LIMIT_US) {
    card_lose(); /* no card, or it does not answer */
  } else {
    enter_idle();
  }
}

/* The limit begins with the first of these commands. */
static void go_idle(void) {
  card.since = card.since ? card.since : chip_ticks() | 1;
  sd_command(SD_GO_IDLE, 0, idle_entered);
}

static void old_transfer_stopped(void) {
  sd_wait(go_idle, go_idle);
}

static void stop_by_command(void) {
  sd_command(SD_STOP, 0, old_transfer_stopped);
}

static void old_write_stopped(void) {
  sd_wait(stop_by_command, stop_by_command);
}

static void stop_old_write(void) {
  card_send_stop_token(old_write_stopped);
}

static void block_completed(void) {
  sd_wait(stop_old_write, stop_old_write);
}

/* If only the processor was reset, the card may still be in a write, at any
 * byte. Then many cards understand no command. So complete the block: its CRC
 * is wrong, so the card drops the block. Then stop the write with the stop
 * token and also with CMD12, because some cards now understand only CMD12. Wait
 * while the card is busy: CMD0 would interrupt the programming of the card. */
static void clocks_given(void) {
  chip_spi_select(true);
  sd_bus.then = block_completed;
  chip_spi_exchange(NULL, NULL, CHIP_EXCHANGE_MAX);
}

/* Give the card at least 74 clocks while it is not selected, and then CMD0. */
static void enter_idle(void) {
  chip_spi_select(false);
  memset(sd_bus.out, 0xff, sizeof sd_bus.out);
  sd_exchange(SD_CHUNK, clocks_given);
}

static void slow_down(void) {
  (void)chip_spi_speed(0);
  enter_idle();
}

void card_initialise(void) {
  card.about.is_ready = false;
  card.since = 0;
  deselect(slow_down);
}
