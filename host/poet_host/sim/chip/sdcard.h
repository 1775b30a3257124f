/* sdcard.h - an SD card in SPI mode (SD Physical Layer Simplified Specification
   6.00, chapter 7). Its content is an image file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api.h"

enum {
  SD_BLOCK_BYTES = 512,
  SD_STATUS_BYTES = 64,
  SD_FAULTS = 32,
};

enum { /* second byte of R2 (7.3.2.3) */
       R2_ERROR = 4,
       R2_PROTECTED = 32,
       R2_OUT_OF_RANGE = 128,
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
  SD_SENDING,    /* sends a register, a block, or many blocks */
  SD_WAIT_TOKEN, /* waits for the token of a block from the host */
  SD_RECEIVING,  /* receives the block and its CRC */
};

struct sdcard {
  struct sdcard_config config;
  struct sdcard_counts counts;
  struct sd_fault faults[SD_FAULTS];
  unsigned fault_count;
  uint8_t *image; /* content: the mapped file */
  uint8_t *blank; /* content of the card that replaced it, or NULL */
  uint64_t blocks;
  uint64_t random, noise;

  uint32_t supply_mv;
  bool present, selected, power_lost;
  const char *complaint; /* first violation by the host, or NULL */
  bool surprise; /* just inserted or swapped: the host cannot know yet */

  enum sd_state state;
  unsigned idle_clocks; /* before the first command */
  bool application;     /* the last command was CMD55 */
  uint32_t announced;   /* blocks: the last command was ACMD23; else 0 */
  bool crc_on, saw_cmd8, initialising;
  uint64_t ready_ns; /* end of initialisation */

  uint8_t command[6];
  unsigned command_bytes;
  uint8_t response[32]; /* with the N_CR bytes before it */
  unsigned response_at, response_end;
  uint64_t busy_until_ns, last_ns; /* last_ns: latest time of the host */

  uint8_t data[1 + SD_BLOCK_BYTES + 2];
  unsigned data_at, data_end;
  uint64_t data_ready_ns;
  bool many;          /* a multi-block transfer */
  bool sending_block; /* a block; not a register */
  bool refused;       /* a block of this write was refused */
  bool failed;        /* a block of this write was not stored, unnoticed */
  uint64_t report_at; /* the write of this number reports that; 0: none */
  uint32_t written;   /* blocks of the latest write that were stored */
  uint8_t status;     /* second byte of R2: errors not yet reported */
  uint64_t block;
  uint64_t last_erase_group;
  uint64_t erase_first, erase_last;

  bool active, writing;
  uint64_t active_since_ns;
};

/* -- sdstore.c: content, faults and times -- */
bool sdstore_open(struct sdcard *card, const char *path);
void sdstore_close(struct sdcard *card);
/* Fault of this kind for the given block transfer, or NULL. */
const struct sd_fault *sd_fault_at(const struct sdcard *card,
                                   enum card_fault kind, uint64_t ordinal);
/* Program a block; returns its busy time in nanoseconds. */
uint64_t sdstore_program(struct sdcard *card, uint64_t block,
                         const uint8_t *data);
/* Busy time of the latest block, which was to go to this place. */
uint64_t sdstore_busy_ns(struct sdcard *card, uint64_t block);
void sdstore_erase(struct sdcard *card, uint64_t first, uint64_t last);
/* `us` with the card's random increase, in nanoseconds. */
uint64_t sd_varied_ns(struct sdcard *card, uint32_t us);
void sd_csd(const struct sdcard *card, uint8_t csd[16]);
void sd_cid(const struct sdcard *card, uint8_t cid[16]);
void sd_status(const struct sdcard *card, uint8_t status[SD_STATUS_BYTES]);

/* -- between sdcard.c and sdcommand.c -- */
void sd_reset(struct sdcard *card);
void sd_activity(struct sdcard *card, bool active, uint64_t now_ns);
void sd_complain(struct sdcard *card, const char *text);
void sd_send(struct sdcard *card, const uint8_t *bytes, unsigned size_bytes);
void sd_start_reading(struct sdcard *card, uint64_t now_ns, uint32_t us);
/* A whole command has arrived. */
void sd_obey(struct sdcard *card, uint64_t now_ns);
