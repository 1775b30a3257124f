/*
 * card.h - an SD card in SPI mode, driven from interrupts.
 *
 * A job is a run of blocks to read or to write. It goes on by itself: every
 * exchange ends in an interrupt that starts the next, and while the card is
 * busy a timer looks again, so that the processor computes meanwhile. A job
 * that fails initialises the card once more and goes on at the block where it
 * was; if that fails too, or if it is another card, it ends with an error.
 */
#ifndef POET_CARD_H
#define POET_CARD_H

#include <stdbool.h>
#include <stdint.h>

struct card_job {
  uint32_t block;
  uint32_t count; /* 0: only initialise the card, whatever card it is */
  bool write;
  /* Where block `index` of the job lies (write), or shall lie (read). */
  uint8_t *(*place)(uint32_t index);
  /* While a block is moved by DMA: the job's first `count` blocks will not
   * change any more. */
  void (*meanwhile)(uint32_t count);
  /* It has been written, or has arrived. False ends the job here. */
  bool (*passed)(uint32_t index);
  /* The end: 0, or -1. Called from an interrupt; may start the next job. */
  void (*ended)(int error);
};

/* Only when no job runs. The job must stay until `ended`. */
void card_start(const struct card_job *job);
/* Of the card that was initialised last; 0: none answered. */
uint32_t card_blocks(void);

#endif
