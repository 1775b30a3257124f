/* board.c - see board.h. State: none; what is kept lies in flash. */
#include "board.h"

#include <string.h>

#include "chip.h"
#include "health.h"
#include "registers.h"

enum {
  BLOCK_BYTES = 512, /* two rows: one erase unit */
  PAGE_BYTES = 64,   /* what one write programs */
  BUTTON_PIN = 32 + 10,
  LAST_PRESS_US = 1000 * 1000, /* no press follows after this time */
};
extern const uint8_t __store_start[], __store_end[];

void board_start(void) {
  health_start();
  chip_start();
  PORT_OUTSET(BUTTON_PIN / 32) = 1u << BUTTON_PIN % 32; /* pull up */
  PORT_PINCFG(BUTTON_PIN) = PINCFG_PULLEN | PINCFG_INEN;
}

bool board_button(void) {
  return !(PORT_IN(BUTTON_PIN / 32) >> BUTTON_PIN % 32 & 1);
}

unsigned board_presses(struct board_presses *presses) {
  const uint32_t now = board_us();
  const bool is_down = board_button();
  if (is_down) {
    presses->count += !presses->is_down;
    presses->last_us = now;
  }
  presses->is_down = is_down;
  if (!presses->count || now - presses->last_us <= LAST_PRESS_US) {
    return 0;
  }
  const unsigned complete = presses->count;
  presses->count = 0;
  return complete;
}

void board_led(bool on) {
  chip_led(on);
}

uint32_t board_us(void) {
  return chip_ticks();
}

void board_sleep(uint32_t us) {
  chip_feed_watchdog();
  const uint32_t was = chip_lock();
  chip_wake(us);
  chip_sleep();
  chip_unlock(was);
}

static uint32_t micros(void *context) {
  (void)context;
  chip_feed_watchdog();
  return chip_ticks();
}

static int read_block(void *context, uint32_t block, void *data) {
  (void)context;
  memcpy(data, __store_start + block * BLOCK_BYTES, BLOCK_BYTES);
  return 0;
}

static int program(const uint8_t *to, const uint8_t *from, uint32_t size) {
  uint32_t page[PAGE_BYTES / 4];
  for (uint32_t at = 0; at < size; at += PAGE_BYTES) {
    memcpy(page, from + at, PAGE_BYTES);
    chip_flash_program((const uint32_t *)(to + at), page);
  }
  return memcmp(to, from, size) != 0;
}

static int write_block(void *context, uint32_t block, const void *data) {
  (void)context;
  return program(__store_start + block * BLOCK_BYTES, data, BLOCK_BYTES);
}

static int erase_block(void *context, uint32_t block) {
  (void)context;
  const uint8_t *place = __store_start + block * BLOCK_BYTES;
  chip_flash_erase((const uint32_t *)place, BLOCK_BYTES);
  return 0;
}

static uint32_t last_block(void) {
  return (uint32_t)(__store_end - __store_start) / BLOCK_BYTES - 1;
}

struct poet_device board_device(void) {
  return (struct poet_device){.micros = micros,
                              .blocks = last_block(),
                              .read = read_block,
                              .write = write_block,
                              .erase_blocks = 1,
                              .erase = erase_block};
}

void board_keep(const void *data, uint32_t size) {
  uint8_t page[PAGE_BYTES] = {0};
  memcpy(page, data, size);
  erase_block(NULL, last_block());
  program(__store_start + last_block() * BLOCK_BYTES, page, PAGE_BYTES);
}

bool board_kept(void *data, uint32_t size) {
  const uint8_t *place = __store_start + last_block() * BLOCK_BYTES;
  memcpy(data, place, size);
  for (uint32_t i = 0; i < PAGE_BYTES; i++) {
    if (place[i] != 0xff) {
      return true;
    }
  }
  return false;
}
