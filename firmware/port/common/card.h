/*
 * card.h - an SD card in SPI mode, driven from interrupts.
 *
 * A job reads or writes consecutive blocks. It needs no thread: each exchange
 * ends in an interrupt that starts the next one, and a timer interrupt polls a
 * busy card. The processor computes meanwhile. After an error the job stops the
 * transfer and continues at the first block that the card has not written. A
 * job ends with an error if one block needs more than three retries, if all
 * blocks together need too many retries, or if the card was swapped.
 */
#ifndef POET_CARD_H
#define POET_CARD_H

#include <stdbool.h>
#include <stdint.h>

struct poet_card; /* records.h */

struct card_job {
  uint32_t block;
  /* number of blocks; 0: the job only initialises the card, and accepts any
   * card */
  uint32_t count;
  bool write;
  /* Return the address in RAM of block `index` of the job. */
  uint8_t *(*place)(uint32_t index);
  /* Called while DMA moves a block: the first `count` blocks of the job are
   * final and can be processed. */
  void (*meanwhile)(uint32_t count);
  /* Called after each block: in a write, when the card has accepted block
   * `index`; in a read, when the block has arrived. Return false to end the job
   * after this block. After an error, the job may write blocks again for which
   * this function was already called. */
  bool (*passed)(uint32_t index);
  /* Called when the job has ended. `error` is 0, or -1 after an error. The
   * function may start the next job. */
  void (*ended)(int error);
};

/* Start a job. No other job may be running, and `job` must stay valid until
 * `ended` is called. The callbacks are called from interrupts. */
void card_start(const struct card_job *job);
/* Return the number of blocks of the card that was initialised last, or 0 if no
 * card answered. */
uint32_t card_blocks(void);
/* Return the allocation unit of this card in MiB, rounded up, or 0 if it is
 * unknown or no card answered. */
uint32_t card_allocation_mib(void);
/* Return the number of retries after errors, of all jobs since the start. */
uint32_t card_retries(void);
/* Return the clock of the card's bus, or 0 if no card is ready. */
uint16_t card_khz(void);
/* Report what is known about the card. `context` is not used. */
void card_report(void *context, struct poet_card *report);

#endif
