/*
 * card_parts.h - what card.c (jobs) and card_mount.c (initialisation) share.
 */
#ifndef POET_CARD_PARTS_H
#define POET_CARD_PARTS_H

#include "card.h"
#include "sd_bus.h"

enum { REGISTER = 16 }; /* bytes of CSD and CID */

extern struct card {
  const struct card_job *job; /* NULL: none runs */
  uint32_t index;             /* block of the job that is being moved */
  uint32_t base;              /* its first block since CMD18 or CMD25 */
  uint32_t failed_at;         /* block of the latest retry */
  uint32_t job_retries;       /* of all blocks of the job */
  uint8_t block_retries;      /* since a block after `failed_at` has passed */
  bool faulty;                /* block `index` has failed */
  bool ready;                 /* the card is initialised */
  bool version2, high_capacity;
  uint8_t known_cid[REGISTER]; /* of the card that was mounted */
  uint8_t bytes[REGISTER + 2]; /* a register as received, with its CRC */
  uint32_t blocks;             /* capacity; 0: no card */
  uint32_t since;              /* start of its current limit: ticks */
  uint32_t retries;            /* of all jobs */
} card;

/* Initialise the card, then continue the job. */
void card_initialise(void);
/* Begin to move blocks, from `index` on. Without any, the job ends. */
void card_begin(void);
/* An error after which it is not known what the card has written since CMD25:
 * initialise the card and try again, or end the job. */
void card_give_up(void);
/* The job has failed, and so has the card, until it is mounted again. */
void card_lose(void);
/* A multi-block write ends by this token instead of a block. */
void card_send_stop_token(sd_step *then);

#endif
