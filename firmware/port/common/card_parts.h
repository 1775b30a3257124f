/*
 * card_parts.h - declarations that card.c (jobs) and card_mount.c
 * (initialisation) share.
 */
#ifndef POET_CARD_PARTS_H
#define POET_CARD_PARTS_H

#include "card.h"
#include "poet/records.h"
#include "sd_bus.h"

/* bytes of CSD and CID, and those of the SD Status that are kept */
enum { REGISTER = 16 };
enum { R1_ILLEGAL = 4 };

extern struct card {
  const struct card_job *job; /* NULL: none runs */
  uint32_t index;       /* the current block, counted from the job's first */
  uint32_t base;        /* block at which the last CMD18 or CMD25 started */
  uint32_t failed_at;   /* block of the latest retry */
  uint16_t job_retries; /* of all blocks of the job */
  /* number of retries in a row without progress; the count restarts when a
   * block after `failed_at` fails */
  uint8_t block_retries;
  bool faulty; /* block `index` has failed */
  /* What the host may ask for; card_report sets the other fields of its copy.
   * `slower` counts from CHIP_SPI_FASTEST. */
  struct poet_card about;
  uint32_t blocks; /* capacity; 0: no card */
  uint32_t since;  /* start of its current limit: ticks */
} card;

/* Initialise the card, then continue the job. */
void card_initialise(void);
/* Begin to transfer blocks, starting with block `index`. If no blocks are left,
 * end the job. */
void card_begin(void);
/* Handle an error after which it is unknown what the card has written since
 * CMD25: initialise the card and try again, or end the job. */
void card_give_up(void);
/* End the job with an error. Until the card is initialised again, it counts as
 * absent. */
void card_lose(void);
/* Send the token that ends a multi-block write. */
void card_send_stop_token(sd_step *then);

#endif
