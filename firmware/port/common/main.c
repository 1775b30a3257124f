/*
 * main.c - the serial application of the bare-metal boards: it provides memory
 * and port, then answers requests in a loop. The sizes of its tables are in the
 * chip's sizes.h.
 *
 * State: all memory of the library. It is in static arrays, which are always
 * valid. The arena lies in a section of its own, so that its size can be
 * measured.
 *
 * The functions idle() and await_input() check for work and sleep with
 * interrupts locked out. An interrupt after the check still wakes the core, so
 * no wake-up is lost.
 */
#include "card.h"
#include "chip.h"
#include "health.h"
#include "lane.h"
#include "link.h"
#include "poet/server.h"
#include "sizes.h"
#include "usb.h"

enum {
  IDLE_US = 10 * 1000,
  FOREVER_MS = 0xffffffff / 1000,
  /* A board that waits for a host wakes up to feed its watchdog. Then its LED
   * flashes, to show what the board waits for. */
  FEED_MS = 6 * 1000,
  FLASH_MS = 200,
  /* Before the board trains alone, it waits ATTEND_TIMES times for a host.
   * Noise on the line can end a wait early, so one wait is not enough. */
  ATTEND_MS = 750,
  ATTEND_TIMES = 4
};

static uint32_t arena[BOARD_ARENA_BYTES / 4] __attribute__((section(".arena")));
static struct poet_resident residents[BOARD_RESIDENTS];
static uint32_t bitmap[(BOARD_TENSORS + 31) / 32];
static struct poet_transfer queue[BOARD_QUEUE];
#ifdef BOARD_SLABS
static uint8_t steps[(BOARD_SLABS + 3) / 4];
static struct poet_rows rows = {.steps = steps, .capacity = BOARD_SLABS};
#endif
static struct poet_trace trace[BOARD_TRACE];
static struct poet_cache cache[BOARD_CACHE];
static uint32_t frame[(POET_FRAME_BUFFER(BOARD_FRAME) + 3) / 4];
static struct poet board;
static char unique_id[17];

static uint32_t ticks(void *context) {
  (void)context;
  return chip_ticks();
}

static bool bytes_wait(void) {
  return chip_uart_waiting() || usb_waiting();
}

static void idle(void *context) {
  (void)context;
  const uint32_t was = chip_lock();
  if (!lane_noticed() && !link_waiting()) {
    chip_wake(IDLE_US);
    lane_rest(bytes_wait);
    chip_wake(0);
  }
  chip_unlock(was);
}

static void await_input(uint32_t wait_ms) {
  /* The longest wait may end after 71 minutes: main begins another one. */
  const uint32_t wait_us = wait_ms < FOREVER_MS ? wait_ms * 1000 : UINT32_MAX;
  const uint32_t started = chip_ticks();
  unsigned changes = 0; /* of the LED, until its flashes end */
  uint32_t due = started + FEED_MS * 1000; /* end of the latest rest */
  const uint32_t was = chip_lock();
  while (!link_waiting()) {
    const uint32_t now = chip_ticks(), past_us = now - started;
    if (past_us >= wait_us) {
      break;
    }
    /* An interrupt of USB ends the flashes, and makes no wait longer. */
    changes = (int32_t)(now - due) < 0
                  ? 0
                  : health_led_changes(changes, board.storage_status);
    uint32_t rest_us = (changes ? FLASH_MS : FEED_MS) * 1000;
    if (rest_us > wait_us - past_us) {
      rest_us = wait_us - past_us;
    }
    due = now + rest_us;
    chip_led(changes & 1);
    chip_wake(rest_us);
    health_moved();
    lane_sleep();
    chip_let_interrupts_run();
  }
  chip_unlock(was);
  chip_wake(0);
}

static size_t receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms) {
  (void)context;
  if (wait_ms) {
    await_input(wait_ms);
  }
  return link_receive(data, (uint32_t)size);
}

static void send(void *context, const uint8_t *data, size_t size) {
  (void)context;
  link_send(data, (uint32_t)size);
}

static const struct poet_port port = {.context = &board,
                                      .board = BOARD_NAME,
                                      .unique_id = unique_id,
                                      .tick_hz = CHIP_TICK_HZ,
                                      .ticks = ticks,
                                      .usage = lane_usage,
                                      .idle = idle,
                                      .storage_blocks = lane_storage_blocks,
                                      .allocation_mib = lane_allocation_mib,
                                      .read = lane_read,
                                      .write = lane_write,
                                      .flush = lane_flush,
                                      .is_flash = lane_is_flash,
                                      .erase = lane_erase,
                                      .submit = lane_submit,
                                      .lane_checks = true,
                                      .alive = health_alive,
                                      .health = health_report,
                                      .card = card_report,
                                      .receive = receive,
                                      .send = send};
static const struct poet_memory memory = {.arena = (uint8_t *)arena,
                                          .arena_bytes = BOARD_ARENA_BYTES,
                                          .residents = residents,
                                          .resident_capacity = BOARD_RESIDENTS,
                                          .bitmap = bitmap,
                                          .tensor_capacity = BOARD_TENSORS,
                                          .queue = queue,
                                          .queue_capacity = BOARD_QUEUE,
                                          .cache_blocks = BOARD_CACHE,
                                          .cache = cache,
                                          .trace = trace,
#ifdef BOARD_SLABS
                                          .rows = &rows,
#endif
                                          .trace_capacity = BOARD_TRACE};

int main(void) {
  health_start();
  chip_start();
  chip_unique_id(unique_id);
  usb_start(BOARD_NAME, unique_id);
  struct poet_server server = {
      .poet = &board, .frame = (uint8_t *)frame, .frame_bytes = BOARD_FRAME};
  poet_init(&board, &port, &memory);
  for (int i = 0; i < ATTEND_TIMES && !server.attended; i++) {
    poet_serve(&server, ATTEND_MS);
  }
  if (!server.attended && health_tries_job()) {
    if (poet_serve_alone(&server) == POET_ERROR_storage_failed) {
      /* Nobody is there to do it: perhaps the card works after a reset. */
      health_restart(POET_RESET_card, 0);
    }
    health_forget_tries();
  }
  for (;;) {
    poet_serve(&server, UINT32_MAX);
    if (server.attended) {
      health_forget_tries();
    }
  }
}
