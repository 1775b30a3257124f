/* sdcommand.c - commands and their responses (sections 7.2, 7.3 of the
   specification). sd_obey handles a whole command of six bytes: it checks
   CRC and state, changes the state, and queues N_CR bytes and the response. An
   uninitialised card accepts only CMD0, then the commands of initialisation. */
#include "sdcard.h"

#include <string.h>

enum { /* R1 (7.3.2.1) */
       R1_IDLE = 1,
       R1_ILLEGAL = 4,
       R1_CRC = 8,
       R1_ERASE_SEQUENCE = 16,
       R1_ADDRESS = 32,
       R1_PARAMETER = 64,
};

/* -- responses -- */

static void respond(struct sdcard *card, const uint8_t *bytes, unsigned count) {
  unsigned before = card->config.response_bytes;
  memset(card->response, 0xff, before);
  memcpy(card->response + before, bytes, count);
  card->response_at = 0;
  card->response_end = before + count;
}

static uint8_t idle_bit(const struct sdcard *card) {
  return card->state <= SD_IDLE ? R1_IDLE : 0;
}

static void respond_r1(struct sdcard *card, uint8_t flags) {
  uint8_t r1 = (uint8_t)(flags | idle_bit(card));
  respond(card, &r1, 1);
}

static void respond_r3_r7(struct sdcard *card, uint32_t value) {
  uint8_t bytes[5] = {idle_bit(card), (uint8_t)(value >> 24),
                      (uint8_t)(value >> 16), (uint8_t)(value >> 8),
                      (uint8_t)value};
  respond(card, bytes, 5);
}

/* Set the block from a command's argument: on SDHC the number of the block, on
   SDSC its address in bytes. Return the error bits of R1. */
static uint8_t address(struct sdcard *card, uint32_t argument) {
  if (!card->config.high_capacity && argument % SD_BLOCK_BYTES != 0)
    return R1_ADDRESS;
  card->block =
      card->config.high_capacity ? argument : argument / SD_BLOCK_BYTES;
  return card->block < card->blocks ? 0 : R1_PARAMETER;
}

static void start_transfer(struct sdcard *card, uint32_t argument, bool write,
                           bool many, uint64_t now_ns) {
  uint8_t wrong = address(card, argument);
  respond_r1(card, wrong);
  if (wrong)
    return;
  card->many = many;
  card->writing = write;
  card->refused = card->failed = false;
  if (write)
    card->written = 0;
  card->state = write ? SD_WAIT_TOKEN : SD_SENDING;
  sd_activity(card, true, now_ns);
  if (!write)
    sd_start_reading(card, now_ns, card->config.read_first_us);
}

static void respond_r2(struct sdcard *card) {
  uint8_t bytes[2] = {idle_bit(card), card->status};
  respond(card, bytes, 2);
  card->status = 0; /* reported */
}

static void send_bytes(struct sdcard *card, const uint8_t *bytes, unsigned size,
                       uint64_t now_ns) {
  sd_send(card, bytes, size);
  card->data_ready_ns = now_ns;
  card->many = card->sending_block = false;
  card->state = SD_SENDING;
}

static void send_register(struct sdcard *card, bool csd, uint64_t now_ns) {
  uint8_t bytes[16];
  if (csd)
    sd_csd(card, bytes);
  else
    sd_cid(card, bytes);
  respond_r1(card, 0);
  send_bytes(card, bytes, sizeof bytes, now_ns);
}

static void send_written(struct sdcard *card, uint64_t now_ns) {
  uint32_t count = card->written;
  uint8_t bytes[4] = {(uint8_t)(count >> 24), (uint8_t)(count >> 16),
                      (uint8_t)(count >> 8), (uint8_t)count};
  respond_r1(card, 0);
  send_bytes(card, bytes, sizeof bytes, now_ns);
}

static void send_sd_status(struct sdcard *card, uint64_t now_ns) {
  uint8_t bytes[SD_STATUS_BYTES];
  sd_status(card, bytes);
  respond_r2(card);
  send_bytes(card, bytes, sizeof bytes, now_ns);
}

static void stop_transmission(struct sdcard *card, uint64_t now_ns) {
  card->state = SD_READY;
  card->many = false;
  respond_r1(card, 0);
  card->busy_until_ns = now_ns + sd_varied_ns(card, card->config.stop_us);
  sd_activity(card, false, card->busy_until_ns);
}

static void erase(struct sdcard *card, uint64_t now_ns) {
  uint64_t first = card->erase_first, last = card->erase_last;
  card->erase_first = card->erase_last = UINT64_MAX;
  if (first > last || last >= card->blocks) {
    respond_r1(card, R1_ERASE_SEQUENCE);
    return;
  }
  respond_r1(card, 0);
  card->writing = true;
  sdstore_erase(card, first, last);
  uint64_t groups = (last - first) / card->config.erase_group_blocks + 1;
  card->busy_until_ns =
      now_ns + groups * sd_varied_ns(card, card->config.erase_us);
  sd_activity(card, true, now_ns);
  sd_activity(card, false, card->busy_until_ns);
}

static void send_op_cond(struct sdcard *card, uint32_t argument,
                         uint64_t now_ns) {
  bool host_capacity = argument >> 30 & 1;
  if (!card->initialising) {
    card->initialising = true;
    card->ready_ns = now_ns + sd_varied_ns(card, card->config.init_us);
  }
  bool able = !card->config.high_capacity || (host_capacity && card->saw_cmd8);
  if (able && now_ns >= card->ready_ns && card->state == SD_IDLE)
    card->state = SD_READY;
  respond_r1(card, 0);
}

/* Return false if no ACMD has this index (table 4-30). Then the command after
   CMD55 is the regular one (4.3.9.1). */
static bool is_application_command(unsigned index) {
  return index > 12 && index != 17 && index != 24;
}

static void application_command(struct sdcard *card, unsigned index,
                                uint32_t argument, uint64_t now_ns) {
  if (index == 41)
    send_op_cond(card, argument, now_ns);
  else if (index == 13 && card->state == SD_READY && card->config.sd_status)
    send_sd_status(card, now_ns);
  else if (index == 22 && card->state == SD_READY)
    send_written(card, now_ns);
  else if (index == 23 && card->state == SD_READY) {
    card->announced = argument & 0x7fffff; /* to erase: only a hint */
    respond_r1(card, 0);
  } else
    respond_r1(card, R1_ILLEGAL);
}

static void ready_command(struct sdcard *card, unsigned index,
                          uint32_t argument, uint64_t now_ns) {
  switch (index) {
  case 9:
  case 10:
    send_register(card, index == 9, now_ns);
    break;
  case 12:
    stop_transmission(card, now_ns);
    break;
  case 13:
    respond_r2(card);
    break;
  case 16:
    respond_r1(card, argument == SD_BLOCK_BYTES ? 0 : R1_PARAMETER);
    break;
  case 17:
  case 18:
    start_transfer(card, argument, false, index == 18, now_ns);
    break;
  case 24:
  case 25:
    start_transfer(card, argument, true, index == 25, now_ns);
    break;
  case 32:
  case 33:
    respond_r1(card, address(card, argument));
    *(index == 32 ? &card->erase_first : &card->erase_last) = card->block;
    break;
  case 38:
    erase(card, now_ns);
    break;
  default:
    respond_r1(card, R1_ILLEGAL);
    break;
  }
}

static void execute(struct sdcard *card, unsigned index, uint32_t argument,
                    uint64_t now_ns) {
  bool application = card->application;
  if (index == 25 && !application)
    card->counts.announced += card->announced;
  uint32_t capacity = card->config.high_capacity ? 1u << 30 : 0;
  card->application = false;
  card->announced = 0;
  if (index == 0) {
    sd_activity(card, false, now_ns);
    sd_reset(card);
    card->surprise = false;
    card->state = SD_IDLE;
    respond_r1(card, 0);
  } else if (index == 8) {
    card->saw_cmd8 = true;
    bool accepted = (argument >> 8 & 15) == 1 && !card->config.refuses_supply;
    respond_r3_r7(card, argument & (accepted ? 0xfffu : 0xffu));
  } else if (index == 55) {
    card->application = true;
    respond_r1(card, 0);
  } else if (index == 58) {
    respond_r3_r7(card, card->state == SD_IDLE ? 0x00ff8000u
                                               : 0x80ff8000u | capacity);
  } else if (index == 59) {
    card->crc_on = argument & 1;
    respond_r1(card, 0);
  } else if (application && is_application_command(index)) {
    application_command(card, index, argument, now_ns);
  } else if (card->state == SD_IDLE) {
    respond_r1(card, R1_ILLEGAL);
  } else {
    ready_command(card, index, argument, now_ns);
  }
}

void sd_obey(struct sdcard *card, uint64_t now_ns) {
  unsigned index = card->command[0] & 0x3f;
  uint32_t argument = (uint32_t)card->command[1] << 24 |
                      (uint32_t)card->command[2] << 16 |
                      (uint32_t)card->command[3] << 8 | card->command[4];
  bool crc_right =
      card->command[5] == (uint8_t)(sd_crc7(card->command, 5) << 1 | 1);
  card->command_bytes = 0;
  card->counts.commands++;
  if (card->state == SD_POWERED && (index != 0 || !crc_right))
    return; /* still in SD bus mode: no answer */
  if (!crc_right && (card->crc_on || index == 0 || index == 8)) {
    card->counts.crc_errors++;
    respond_r1(card, R1_CRC);
    return;
  }
  if (now_ns < card->busy_until_ns && (index != 0 || card->config.strict)) {
    if (index != 0)
      sd_complain(card, "a command while the card was busy");
    return;
  }
  if (card->state == SD_WAIT_TOKEN && card->config.strict && index != 12)
    return;
  if (card->state == SD_SENDING && index != 12 && index != 0)
    sd_complain(card, "a command other than CMD12 while the card sent data");
  execute(card, index, argument, now_ns);
}
