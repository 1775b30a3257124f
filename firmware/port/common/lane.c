/*
 * lane.c - the transfer lane: interrupts run a queue of transfers between RAM
 * and the SD card. A synchronous request, for whose end the thread waits, runs
 * between two blocks of a transfer.
 *
 * Two functions give work to the card:
 * - lane_submit appends a transfer to a list. Interrupts move its blocks while
 *   the thread computes.
 * - request() runs one synchronous job and sleeps until it ends. It has
 *   priority: transfer_passed ends the job of a transfer at the next block.
 *   Later the transfer continues at block `moved`.
 *
 * State: struct lane. Interrupts change it, so the thread touches it only while
 * these interrupts are locked out (chip_lock_lane). `first` to `last` are the
 * submitted transfers; `moved`, `passed`, `checked` and `crc` belong to
 * `first`. `busy` is set while the card has a job, `asked` from the start of a
 * synchronous request to its end.
 *
 * Order: transfer_ended takes the transfer out of the list and fills in all
 * fields before it ends the transfer, because the library may reuse the
 * transfer from then on. The thread checks for work and then sleeps with all
 * interrupts locked out: an interrupt that comes after the check still wakes
 * the core, so no wake-up is lost.
 */
#include "lane.h"

#include "card.h"
#include "chip.h"
#include "flash.h"
#include "health.h"
#include "poet/poet.h"
#include "sd_bus.h"

static struct {
  struct poet_transfer *first; /* runs, or runs next; NULL: none */
  struct poet_transfer *last;  /* valid while `first` is not NULL */
  volatile bool busy;          /* the card has a job */
  volatile bool asked;         /* a synchronous job waits or runs */
  volatile bool ended;         /* a job has ended since lane_rest began */
  /* true: a transfer has ended since the last call of lane_noticed */
  volatile bool event;
  /* Storage is the chip's own flash: a mount found no card, and none was there
   * before. A card that goes away fails, and never turns into flash. */
  bool is_flash;
  bool had_card; /* since the start */
  int result;    /* result of the synchronous job */
  uint8_t *data; /* bytes of the synchronous job */
  /* the card job of a transfer; it must not change until the job ends */
  struct card_job job;
  struct card_job request; /* the same for a synchronous request */
  /* number of blocks that earlier jobs of the transfer `first` have moved */
  uint32_t moved;
  uint32_t passed; /* the same, with the blocks of its current job */
  /* number of the transfer's blocks, from its first on, that are in `crc` */
  uint32_t checked;
  uint32_t crc;
  uint32_t started; /* start of the card's job: ticks */
  struct poet_usage usage;
  uint32_t bounce[POET_BLOCK / 4]; /* a transfer's last blocks */
} lane;

static void start_next(void);

static void start(const struct card_job *job) {
  lane.busy = true;
  lane.started = chip_ticks();
  card_start(job);
}

static void ended(const struct card_job *job) {
  const uint32_t ticks = chip_ticks() - lane.started;
  *(job->write ? &lane.usage.writing : &lane.usage.reading) += ticks;
  lane.busy = false;
  lane.ended = true;
}

/* -- transfers: DMA moves full blocks from or to the tensor itself, and the
 * last blocks through the buffer `bounce` -- */

/* Add blocks to the CRC while DMA moves the next one. After an error, a block
 * may move again: its index is below `checked`, so it is not added twice. */
static void transfer_meanwhile(uint32_t count) {
  const struct poet_transfer *transfer = lane.first;
  count += lane.moved;
  for (; lane.checked < count && lane.checked < poet_transfer_whole(transfer);
       lane.checked++) {
    lane.crc = chip_crc(lane.crc, transfer->data + lane.checked * POET_BLOCK,
                        POET_BLOCK);
  }
}

/* Use the CRC of all data. Neither sends nor receives a block now. */
static void check(struct poet_transfer *transfer) {
  transfer_meanwhile(poet_transfer_whole(transfer));
  const uint32_t done = lane.checked * POET_BLOCK;
  poet_transfer_check(
      transfer,
      chip_crc(lane.crc, transfer->data + done, transfer->size_bytes - done),
      transfer->size_bytes);
}

static uint8_t *transfer_place(uint32_t index) {
  struct poet_transfer *transfer = lane.first;
  const uint32_t whole = poet_transfer_whole(transfer);
  index += lane.moved;
  if (index < whole) {
    return transfer->data + index * POET_BLOCK;
  }
  if (transfer->write) {
    check(transfer);
    poet_transfer_fill(transfer, index, (uint8_t *)lane.bounce);
  }
  return (uint8_t *)lane.bounce;
}

/* Return false to end the card's job, so that a synchronous job can run. */
static bool transfer_passed(uint32_t index) {
  struct poet_transfer *transfer = lane.first;
  index += lane.moved;
  if (!transfer->write && index >= poet_transfer_whole(transfer)) {
    poet_transfer_take(transfer, index, (const uint8_t *)lane.bounce);
  }
  lane.passed = index + 1;
  health_moved();
  return !lane.asked;
}

static void transfer_ended(int error) {
  struct poet_transfer *transfer = lane.first;
  ended(&lane.job);
  if (!error && lane.passed < poet_transfer_blocks(transfer)) {
    /* A synchronous job runs next; later the transfer continues at block
     * `moved`. */
    lane.moved = lane.passed;
    start_next();
    return;
  }
  if (error) {
    transfer->status = POET_ERROR_storage_failed;
  } else if (!transfer->write || transfer->apart) {
    check(transfer);
  }
  /* Remove the transfer from the list before it ends: then the library
   * may reuse the transfer. */
  lane.first = transfer->next;
  transfer->end = chip_ticks();
  lane.event = true;
  lane.moved = 0;
  poet_transfer_end(transfer);
  start_next();
}

/* -- synchronous access -- */

static uint8_t *request_place(uint32_t index) {
  return lane.data + index * POET_BLOCK;
}

static void nothing_to_look_at(uint32_t count) {
  (void)count;
}

static bool go_on(uint32_t index) {
  (void)index;
  health_moved();
  return true;
}

static void request_ended(int error) {
  lane.result = error;
  lane.asked = false;
  ended(&lane.request);
  start_next();
}

/* Start the next job, if the card is free. The caller is an interrupt of the
 * card or of its timer, or has locked out these interrupts. */
static void start_next(void) {
  if (lane.busy) {
    return;
  }
  if (lane.asked) {
    start(&lane.request);
  } else if (lane.first) {
    struct poet_transfer *transfer = lane.first;
    if (!lane.moved) {
      lane.checked = lane.crc = 0;
      transfer->begin = chip_ticks();
    }
    lane.passed = lane.moved;
    lane.job =
        (struct card_job){.block = transfer->block + lane.moved,
                          .count = poet_transfer_blocks(transfer) - lane.moved,
                          .write = transfer->write,
                          .place = transfer_place,
                          .meanwhile = transfer_meanwhile,
                          .passed = transfer_passed,
                          .ended = transfer_ended};
    start(&lane.job);
  }
}

static POET_CHECKED int request(uint32_t block, uint8_t *data, uint32_t count,
                                bool write) {
  const uint32_t lane_was = chip_lock_lane();
  lane.data = data;
  lane.request = (struct card_job){.block = block,
                                   .count = count,
                                   .write = write,
                                   .place = request_place,
                                   .meanwhile = nothing_to_look_at,
                                   .passed = go_on,
                                   .ended = request_ended};
  lane.asked = true;
  start_next();
  chip_unlock_lane(lane_was);
  const uint32_t was = chip_lock();
  while (lane.asked) {
    lane_rest(NULL);
  }
  chip_unlock(was);
  return lane.result;
}

uint32_t lane_storage_blocks(void *context) {
  (void)context;
  /* Initialise whatever card is there. After an error it has no blocks. */
  poet_ignore(request(0, NULL, 0, false));
  lane.had_card |= card_blocks() != 0;
  lane.is_flash = !lane.had_card;
  return lane.is_flash ? flash_blocks() : card_blocks();
}

bool lane_is_flash(void *context) {
  (void)context;
  return lane.is_flash;
}

int lane_erase(void *context, uint32_t block, uint32_t count) {
  (void)context;
  return flash_erase(block, count);
}

uint32_t lane_allocation_mib(void *context) {
  (void)context;
  return card_allocation_mib();
}

int lane_read(void *context, uint32_t block, void *data, uint32_t count) {
  return lane_is_flash(context) ? flash_read(block, data, count)
                                : request(block, data, count, false);
}

int lane_write(void *context, uint32_t block, const void *data,
               uint32_t count) {
  return lane_is_flash(context)
             ? flash_write(block, data, count)
             : request(block, (uint8_t *)(uintptr_t)data, count, true);
}

/* Nothing is left to do: a write ends only when the card is no longer busy and
 * has reported that it has programmed all blocks. */
int lane_flush(void *context) {
  (void)context;
  return 0;
}

void lane_submit(void *context, struct poet_transfer *transfer) {
  (void)context;
  const uint32_t was = chip_lock_lane();
  transfer->next = NULL;
  if (lane.first) {
    lane.last->next = transfer;
  } else {
    lane.first = transfer;
  }
  lane.last = transfer;
  start_next();
  chip_unlock_lane(was);
}

void lane_sleep(void) {
  const uint32_t begin = chip_ticks();
  chip_sleep();
  lane.usage.asleep += chip_ticks() - begin;
}

/* After an interrupt that only moves a job on, sleep again at once. chip_ticks
 * takes long on some chips, so the time of these interrupts is counted in
 * cycles. */
void lane_rest(bool (*stop)(void)) {
  const uint32_t begin = chip_ticks();
  uint32_t awake_cycles = 0;
  lane.ended = false;
  do {
    chip_sleep();
    sd_bus.moved = false;
    const uint32_t from = chip_cycles();
    chip_let_interrupts_run(); /* the one that woke the core */
    awake_cycles += (from - chip_cycles()) & CHIP_CYCLES_MASK;
  } while (sd_bus.moved && !lane.ended && !(stop && stop()));
  lane.usage.asleep +=
      chip_ticks() - begin - awake_cycles / chip_cycles_per_tick;
}

void lane_usage(void *context, struct poet_usage *usage) {
  (void)context;
  const uint32_t was = chip_lock();
  *usage = lane.usage;
  usage->retries = card_retries();
  usage->erases = flash_erases();
  chip_unlock(was);
}

bool lane_noticed(void) {
  const bool event = lane.event;
  lane.event = false;
  return event;
}
