/* sdcard.c - the card's side of the SPI protocol (chapter 7 of the
   specification): bytes, data blocks, tokens and faults.

   State: struct sdcard. sdcard_exchange is called for each byte. It first takes
   the byte to send: a response, busy, or data, in this order. Then it handles
   the received byte. Times are absolute (`busy_until_ns`, `data_ready_ns`), so
   the card needs no events. A violation of the protocol is kept as a complaint
   and stops the machine. After a swap of the card or a reset of the host, the
   machine continues, because the host then cannot know the card's state. */
#include "sdcard.h"

#include <stdlib.h>
#include <string.h>

enum { /* tokens (7.3.3) */
       TOKEN_BLOCK = 0xfe,
       TOKEN_WRITE_MANY = 0xfc,
       TOKEN_STOP = 0xfd,
       LOWEST_SUPPLY_MV = 2700,
       TOKEN_ERROR_ECC = 0x04,
       TOKEN_ERROR_RANGE = 0x08,
       DATA_ACCEPTED = 0x05,
       DATA_CRC_ERROR = 0x0b,
       DATA_WRITE_ERROR = 0x0d,
};

enum { IDENTIFICATION_BYTE_NS = 19000, FASTEST_BYTE_NS = 318 };

void sd_reset(struct sdcard *card) {
  card->state = SD_POWERED;
  card->idle_clocks = card->command_bytes = 0;
  card->response_at = card->response_end = 0;
  card->data_at = card->data_end = 0;
  card->busy_until_ns = 0;
  card->application = card->crc_on = card->saw_cmd8 = false;
  card->initialising = card->many = false;
  card->refused = card->failed = false;
  card->status = 0;
  card->last_erase_group = UINT64_MAX;
  card->erase_first = card->erase_last = UINT64_MAX;
}

struct sdcard *sdcard_new(const char *path,
                          const struct sdcard_config *config) {
  struct sdcard *card = calloc(1, sizeof *card);
  card->config = *config;
  card->supply_mv = 3300;
  card->random = config->seed * 2 + 1;
  card->present = true;
  sd_reset(card);
  if (sdstore_open(card, path))
    return card;
  free(card);
  return NULL;
}

void sdcard_free(struct sdcard *card) {
  sdstore_close(card);
  free(card);
}

bool sdcard_add_fault(struct sdcard *card, enum card_fault kind, uint64_t first,
                      uint64_t times, uint32_t argument) {
  if (card->fault_count == SD_FAULTS)
    return false;
  card->faults[card->fault_count++] =
      (struct sd_fault){kind, first, times, argument};
  return true;
}

void sdcard_set_present(struct sdcard *card, bool present) {
  if (present && !card->present) {
    sd_reset(card);
    card->surprise = true;
  }
  card->present = present;
}

static uint64_t since(uint64_t time_ns, uint64_t start_ns) {
  return time_ns > start_ns ? time_ns - start_ns : 0;
}

void sdcard_new_host(struct sdcard *card) {
  uint64_t start_ns = card->last_ns;
  card->selected = false;
  card->command_bytes = 0;
  card->response_at = card->response_end = 0;
  card->busy_until_ns = since(card->busy_until_ns, start_ns);
  card->data_ready_ns = since(card->data_ready_ns, start_ns);
  card->ready_ns = since(card->ready_ns, start_ns);
  card->active_since_ns = since(card->active_since_ns, start_ns);
  card->last_ns = 0;
  card->surprise = card->state > SD_IDLE;
}

const char *sdcard_complaint(const struct sdcard *card) {
  return card->complaint;
}

bool sdcard_power_lost(const struct sdcard *card) {
  return card->power_lost;
}

void sd_activity(struct sdcard *card, bool active, uint64_t now_ns) {
  if (active && !card->active)
    card->active_since_ns = now_ns;
  if (!active && card->active)
    *(card->writing ? &card->counts.writing_ns : &card->counts.reading_ns) +=
        now_ns - card->active_since_ns;
  card->active = active;
}

void sdcard_counts(const struct sdcard *card, uint64_t now_ns,
                   struct sdcard_counts *counts) {
  *counts = card->counts;
  if (card->active && now_ns > card->active_since_ns)
    *(card->writing ? &counts->writing_ns : &counts->reading_ns) +=
        now_ns - card->active_since_ns;
}

void sd_complain(struct sdcard *card, const char *text) {
  if (!card->complaint && !card->surprise && !card->config.noise_one_in)
    card->complaint = text;
}

/* -- sending blocks -- */

void sd_send(struct sdcard *card, const uint8_t *bytes, unsigned size) {
  uint16_t crc = sd_crc16(bytes, size);
  card->data[0] = TOKEN_BLOCK;
  memcpy(card->data + 1, bytes, size);
  card->data[1 + size] = (uint8_t)(crc >> 8);
  card->data[2 + size] = (uint8_t)crc;
  card->data_at = 0;
  card->data_end = size + 3;
}

static void send_error(struct sdcard *card, uint8_t token) {
  card->data[0] = token;
  card->data_at = 0;
  card->data_end = 1;
  card->many = false;
}

void sd_start_reading(struct sdcard *card, uint64_t now_ns, uint32_t us) {
  card->sending_block = false;
  if (card->block >= card->blocks) {
    send_error(card, TOKEN_ERROR_RANGE);
    return;
  }
  uint64_t ordinal = card->counts.reads + 1; /* counted at its end */
  const struct sd_fault *slow = sd_fault_at(card, CARD_SLOW_READ, ordinal);
  card->data_ready_ns = now_ns + sd_varied_ns(card, us) +
                        (slow ? slow->argument * (uint64_t)1000 : 0);
  if (sd_fault_at(card, CARD_READ_ERROR, ordinal)) {
    send_error(card, TOKEN_ERROR_ECC);
    card->sending_block = true;
    return;
  }
  const uint8_t *base = card->blank ? card->blank : card->image;
  sd_send(card, base + card->block * SD_BLOCK_BYTES, SD_BLOCK_BYTES);
  if (sd_fault_at(card, CARD_READ_CRC, ordinal))
    card->data[1 + ordinal % SD_BLOCK_BYTES] ^= 0x10;
  card->sending_block = true;
  card->block++;
}

static uint8_t next_data(struct sdcard *card, uint64_t now_ns) {
  if (now_ns < card->data_ready_ns)
    return 0xff;
  uint8_t byte = card->data[card->data_at++];
  if (card->data_at == card->data_end) {
    card->counts.reads += card->sending_block;
    if (card->many) {
      sd_start_reading(card, now_ns, card->config.read_next_us);
    } else {
      card->state = SD_READY;
      sd_activity(card, false, now_ns);
    }
  }
  return byte;
}

/* -- receiving blocks -- */

static void swap_card(struct sdcard *card) {
  free(card->blank);
  card->blank = calloc(card->blocks, SD_BLOCK_BYTES);
  sd_reset(card);
  card->surprise = true;
}

static void answer(struct sdcard *card, uint8_t byte) {
  card->response[0] = byte;
  card->response_at = 0;
  card->response_end = 1;
}

static uint8_t refuse(struct sdcard *card, uint8_t response, uint8_t status) {
  card->refused = card->config.strict && card->many;
  card->status |= status;
  return response;
}

static uint8_t judge_block(struct sdcard *card, uint64_t now_ns) {
  uint64_t ordinal = card->counts.writes + 1;
  const struct sd_fault *late = sd_fault_at(card, CARD_LATE_ERROR, ordinal);
  uint16_t crc = (uint16_t)(card->data[SD_BLOCK_BYTES] << 8 |
                            card->data[SD_BLOCK_BYTES + 1]);
  bool wrong = card->crc_on && crc != sd_crc16(card->data, SD_BLOCK_BYTES);
  if (wrong || sd_fault_at(card, CARD_WRITE_CRC, ordinal)) {
    card->counts.crc_errors++;
    card->counts.writes += !wrong;
    return refuse(card, DATA_CRC_ERROR, 0);
  }
  if (card->block >= card->blocks || card->config.write_protected) {
    card->counts.writes++;
    return refuse(card, DATA_WRITE_ERROR,
                  card->config.write_protected ? R2_PROTECTED
                                               : R2_OUT_OF_RANGE);
  }
  if (sd_fault_at(card, CARD_WRITE_ERROR, ordinal) ||
      (card->failed && ordinal == card->report_at)) {
    card->counts.writes++;
    return refuse(card, DATA_WRITE_ERROR, R2_ERROR);
  }
  if (late && !card->failed) {
    card->failed = true;
    card->status |= R2_ERROR;
    card->report_at = late->argument ? ordinal + late->argument : 0;
  }
  if (card->failed) {
    card->counts.writes++;
    card->busy_until_ns = now_ns + sdstore_busy_ns(card, card->block);
  } else {
    card->busy_until_ns =
        now_ns + sdstore_program(card, card->block, card->data);
    card->written++;
  }
  card->block++;
  return DATA_ACCEPTED;
}

static void block_received(struct sdcard *card, uint64_t now_ns) {
  uint64_t ordinal = card->counts.writes + 1;
  if (sd_fault_at(card, CARD_REMOVED, ordinal)) {
    card->counts.writes++;
    card->present = false;
    return;
  }
  if (sd_fault_at(card, CARD_SWAPPED, ordinal)) {
    card->counts.writes++;
    swap_card(card);
    return;
  }
  answer(card, card->refused ? DATA_WRITE_ERROR : judge_block(card, now_ns));
  card->state = card->many ? SD_WAIT_TOKEN : SD_READY;
  if (!card->many)
    sd_activity(card, false,
                card->busy_until_ns > now_ns ? card->busy_until_ns : now_ns);
}

static void token_received(struct sdcard *card, uint8_t byte, uint64_t now_ns) {
  if (byte == (card->many ? TOKEN_WRITE_MANY : TOKEN_BLOCK)) {
    if (card->supply_mv < LOWEST_SUPPLY_MV)
      sd_complain(card, "written to with a supply below 2.7 V");
    card->state = SD_RECEIVING;
    card->data_at = 0;
  } else if (card->many && byte == TOKEN_STOP) {
    if (card->refused && card->config.stopped_by_command)
      return;
    card->state = SD_READY;
    card->response_at = 0;
    card->response_end = card->config.busy_bytes;
    memset(card->response, 0xff, card->response_end);
    card->busy_until_ns = now_ns + sd_varied_ns(card, card->config.stop_us);
    sd_activity(card, false, card->busy_until_ns);
  } else {
    sd_complain(card, "a byte other than a data token, where one was due");
  }
}

/* -- the wire -- */

static uint8_t next_output(struct sdcard *card, uint64_t now_ns) {
  if (card->response_at < card->response_end)
    return card->response[card->response_at++];
  if (now_ns < card->busy_until_ns)
    return 0x00;
  if (card->state == SD_SENDING)
    return next_data(card, now_ns);
  return 0xff;
}

/* Return true if the card accepts a command now. Within a write, a strict card
   expects only tokens. After it has refused a block, it also accepts
   CMD12. */
static bool takes_commands(const struct sdcard *card) {
  return card->state != SD_WAIT_TOKEN || !card->config.strict || card->refused;
}

static void take_input(struct sdcard *card, uint8_t mosi, uint64_t now_ns) {
  if (card->state == SD_RECEIVING) {
    card->data[card->data_at++] = mosi;
    if (card->data_at == SD_BLOCK_BYTES + 2)
      block_received(card, now_ns);
  } else if (takes_commands(card) &&
             (card->command_bytes || (mosi & 0xc0) == 0x40)) {
    card->command[card->command_bytes++] = mosi;
    if (card->command_bytes == 6)
      sd_obey(card, now_ns);
  } else if (card->state == SD_WAIT_TOKEN && mosi != 0xff) {
    if (now_ns >= card->busy_until_ns)
      token_received(card, mosi, now_ns);
    else if (mosi == TOKEN_WRITE_MANY) /* a busy card ignores all else */
      sd_complain(card, "a data token while the card was busy");
  }
}

void sdcard_select(struct sdcard *card, bool selected, uint64_t now_ns) {
  card->last_ns = now_ns;
  if (card->selected && !selected) {
    card->command_bytes = 0;
    card->response_at = card->response_end = 0;
    if (card->present && card->state == SD_RECEIVING)
      sd_complain(card, "deselected in the middle of a data block");
  }
  card->selected = selected;
}

/* Return the byte as it arrives over wires that are too long for this clock. */
static uint8_t over_wires(struct sdcard *card, uint8_t byte, uint64_t byte_ns) {
  const uint32_t one_in = card->config.noise_one_in;
  if (!one_in || byte_ns * card->config.clean_khz >= 8000000)
    return byte;
  card->noise = card->noise * 6364136223846793005u + 1442695040888963407u;
  return (card->noise >> 33) % one_in ? byte : byte ^ 0x10;
}

uint8_t sdcard_exchange(struct sdcard *card, uint8_t mosi, uint64_t now_ns,
                        uint64_t byte_ns) {
  card->last_ns = now_ns;
  if (!card->present)
    return 0xff;
  if (!card->selected) {
    if (mosi == 0xff)
      card->idle_clocks += 8;
    return 0xff;
  }
  if (card->state <= SD_IDLE && byte_ns < IDENTIFICATION_BYTE_NS)
    sd_complain(card, "a clock above 400 kHz before the card was ready");
  if (byte_ns < FASTEST_BYTE_NS)
    sd_complain(card, "a clock above 25 MHz");
  if (card->state == SD_POWERED && card->idle_clocks < 74)
    sd_complain(card, "fewer than 74 clocks before the first command");
  uint8_t miso = over_wires(card, next_output(card, now_ns), byte_ns);
  take_input(card, over_wires(card, mosi, byte_ns), now_ns);
  return miso;
}
