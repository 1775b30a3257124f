/*
 * sd_bus.h - single exchanges with an SD card (SD Physical Layer Specification,
 * chapter 7). A function starts an exchange and returns. The interrupt at its
 * end calls the sd_step that was passed to the function.
 */
#ifndef POET_SD_BUS_H
#define POET_SD_BUS_H

#include <stdbool.h>
#include <stdint.h>

enum {
  SD_CHUNK = 24,   /* bytes of a short exchange */
  SD_COMMAND = 63, /* bits of the number of a command in its first byte */
  SD_GO_IDLE = 0,
  SD_IF_COND = 8,
  SD_CSD = 9,
  SD_CID = 10,
  SD_STOP = 12,
  SD_STATUS = 13, /* after SD_APPLICATION: read the register SD Status */
  SD_READ_MANY = 18,
  SD_WRITTEN = 22, /* after SD_APPLICATION: read the number of blocks written */
  SD_ANNOUNCE = 23, /* after SD_APPLICATION: number of blocks to be written */
  SD_WRITE_MANY = 25,
  SD_OP_COND = 41,
  SD_APPLICATION = 55,
  SD_CRC = 59,
};

typedef void sd_step(void);

extern struct sd_bus {
  uint8_t r1;      /* response to the last command; 0xff: no response */
  uint8_t tail[4]; /* bytes after r1 in a long response */
  uint8_t out[SD_CHUNK], in[SD_CHUNK];

  sd_step *then; /* called by the next interrupt */
  sd_step *answered, *found, *meanwhile, *came, *failed;
  volatile bool moved; /* an interrupt of the card has run (lane_rest) */
  bool searches;       /* search after this step */
  bool adapts;     /* a look for this block began right after another block */
  uint8_t token;   /* token to search for; 0: search for the end of busy */
  uint8_t at, end; /* unused bytes of `seen` */
  uint8_t looks;   /* searches in vain */
  uint8_t look;    /* bytes of the next look */
  uint8_t usual_look; /* bytes of a look right after another block, less LOOK */
  uint8_t size;       /* bytes of the current exchange of a register */
  uint8_t rest;      /* exchanges of SD_CHUNK bytes of a register that follow */
  uint8_t noise;     /* see sd_crc_failed */
  uint16_t pause_us; /* after a written block, before the first look */
  uint16_t crc;      /* CRC-16 computed over the received block or register */
  uint8_t *into, *next;     /* memory of the block, and of the one after it */
  uint8_t *seen;            /* bytes of the latest exchange */
  uint32_t since, limit_us; /* start of the search, and its time limit */
} sd_bus;

/* A CRC was wrong. `noise` rises by SD_NOISE_ERROR for each of these errors,
 * and falls by one for each block without an error. */
enum { SD_NOISE_ERROR = 64 };
void sd_crc_failed(void);
/* Exchange the first `size` bytes of `out`. */
void sd_exchange(uint32_t size, sd_step *then);
/* Call `then` after a pause. */
void sd_after(uint32_t us, sd_step *then);
/* Wait until the card is ready and send a command; `answered` finds the
 * response in r1 and tail. CMD0 and CMD12 are sent without waiting. */
void sd_command(uint8_t index, uint32_t argument, sd_step *answered);
/* Wait for a block of POET_BLOCK bytes and receive it. `next`: the memory of
 * the block that follows, which may be overwritten, or NULL. `meanwhile` is
 * called while DMA moves the block, or while the card prepares the next one.
 * `came` is called at the end. `failed` is called instead after an error token
 * or a wrong CRC, or if the card exceeds its time limit. */
void sd_receive(uint8_t *into, uint8_t *next, sd_step *meanwhile, sd_step *came,
                sd_step *failed);
/* Wait for a register of `size` bytes, receive it and check its CRC. The last
 * bytes of a register that is longer than SD_CHUNK are dropped: `into` gets the
 * first size % SD_CHUNK + 2 bytes. 2 is the size of the CRC. */
void sd_register(uint8_t *into, uint8_t size, sd_step *came, sd_step *failed);
/* Wait until the card is no longer busy and sends a byte 0xff. */
void sd_wait(sd_step *found, sd_step *failed);
/* The same while the card programs a block: begin to poll after most of the
 * time that it took for earlier blocks. */
void sd_wait_programmed(sd_step *came, sd_step *failed);

#endif
