/*
 * card.h - an SD card in SPI mode, driven from interrupts.
 *
 * A job reads or writes consecutive blocks. It needs no thread: each exchange
 * ends in an interrupt that starts the next one, and a timer interrupt polls a
 * busy card. The processor computes meanwhile. After an error the job
 * initialises the card once and continues at the same block. After a second
 * error, or if the card was swapped, it ends with an error.
 */
#ifndef POET_CARD_H
#define POET_CARD_H

#include <stdbool.h>
#include <stdint.h>

struct card_job {
  uint32_t block;
  uint32_t count; /* 0: only initialise the card, and accept any card */
  bool write;
  /* Address of block `index` of the job in RAM. */
  uint8_t *(*place)(uint32_t index);
  /* Called while DMA moves a block: the first `count` blocks of the job are
   * final and can be processed. */
  void (*meanwhile)(uint32_t count);
  /* Block `index` has been written, or has arrived. False ends the job here. */
  bool (*passed)(uint32_t index);
  /* The job has ended: 0, or -1 after an error. May start the next job. */
  void (*ended)(int error);
};

/* Start a job while no other runs. `job` must stay valid until `ended`. The
 * callbacks are called from interrupts. */
void card_start(const struct card_job *job);
/* Blocks of the card that was initialised last; 0: no card answered. */
uint32_t card_blocks(void);

#endif
