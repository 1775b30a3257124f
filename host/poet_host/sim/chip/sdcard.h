/* An SD card in SPI mode (SD Physical Layer Simplified Specification 6.00,
   chapter 7), over an image file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api.h"

enum {
  SD_BLOCK_BYTES = 512,
  SD_FAULTS = 32,
};

struct sd_fault {
  enum card_fault kind;
  uint64_t first, times;
  uint32_t argument;
};

enum sd_state {
  SD_POWERED,    /* waits for 74 clocks and CMD0 */
  SD_IDLE,       /* initialising */
  SD_READY,      /* waits for commands */
  SD_SENDING,    /* a block, a register, or many blocks */
  SD_WAIT_TOKEN, /* for a block from the host */
  SD_RECEIVING,  /* its bytes and CRC */
};

struct sdcard {
  struct sdcard_config config;
  struct sdcard_counts counts;
  struct sd_fault faults[SD_FAULTS];
  unsigned fault_count;
  uint8_t *image; /* mapped */
  uint8_t *blank; /* of the card that was swapped in */
  uint64_t blocks;
  uint64_t random;

  bool present, selected, power_lost;
  const char *complaint;
  bool surprise; /* put in under the host's hands: it cannot know yet */

  enum sd_state state;
  unsigned idle_clocks; /* before the first command */
  bool application;     /* CMD55 came before */
  bool crc_on, saw_cmd8, initialising;
  uint64_t ready_ns; /* end of initialisation */

  uint8_t command[6];
  unsigned command_bytes;
  uint8_t response[32]; /* with the bytes before it */
  unsigned response_at, response_end;
  uint64_t busy_until_ns;

  uint8_t data[1 + SD_BLOCK_BYTES + 2];
  unsigned data_at, data_end;
  uint64_t data_ready_ns;
  bool many;          /* a multi-block transfer */
  bool sending_block; /* and not a register or an error token */
  uint64_t block;
  uint64_t last_erase_group;
  uint64_t erase_first, erase_last;

  bool active, writing;
  uint64_t active_since_ns;
};

/* -- sdstore.c: the image, its faults and its times -- */
bool sdstore_open(struct sdcard *card, const char *path);
void sdstore_close(struct sdcard *card);
/* Fault of this kind for the given block transfer, or NULL. */
const struct sd_fault *sd_fault_at(const struct sdcard *card,
                                   enum card_fault kind, uint64_t ordinal);
/* Programs a block; returns how long it takes. */
uint64_t sdstore_program(struct sdcard *card, uint64_t block,
                         const uint8_t *data);
void sdstore_erase(struct sdcard *card, uint64_t first, uint64_t last);
/* `us` with the card's variation, in nanoseconds. */
uint64_t sd_varied_ns(struct sdcard *card, uint32_t us);
void sd_csd(const struct sdcard *card, uint8_t csd[16]);
void sd_cid(const struct sdcard *card, uint8_t cid[16]);

/* -- sdcard.c and sdcommand.c to each other -- */
void sd_reset(struct sdcard *card);
void sd_activity(struct sdcard *card, bool active, uint64_t now_ns);
void sd_complain(struct sdcard *card, const char *text);
void sd_send(struct sdcard *card, const uint8_t *bytes, unsigned size_bytes);
void sd_start_reading(struct sdcard *card, uint64_t now_ns, uint32_t us);
/* A whole command has arrived. */
void sd_command(struct sdcard *card, uint64_t now_ns);
