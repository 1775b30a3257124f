/*
 * flash.c - SAM D21: NVMCTRL erases and writes the chip's own flash (section
 * 22). The program runs from the same flash, so the chip stalls until an
 * operation ends: 6 ms for a row, 2.5 ms for a page (tables 37-40 to 37-43).
 * The commands invalidate the cache of the flash, which may hold old data.
 *
 * State: none. An interrupt may come between two stores: its code stores only
 * into RAM.
 */
#include "chip.h"
#include "registers.h"

enum { ROW_BYTES = 256, PAGE_WORDS = 16 };

static void command(unsigned code) {
  while (!(NVMCTRL_INTFLAG & NVMCTRL_READY)) {
  }
  NVMCTRL_CTRLA = (uint16_t)(NVMCTRL_KEY | code);
  while (!(NVMCTRL_INTFLAG & NVMCTRL_READY)) {
  }
}

void chip_flash_erase(const uint32_t *unit, uint32_t size_bytes) {
  const uint32_t first = (uint32_t)(uintptr_t)unit;
  for (uint32_t at = 0; at < size_bytes; at += ROW_BYTES) {
    NVMCTRL_ADDR = (first + at) / 2;
    command(NVMCTRL_ERASE_ROW);
  }
  command(NVMCTRL_INVALIDATE);
}

/* The stores set ADDR to the page. */
void chip_flash_program(const uint32_t *to, const uint32_t *words) {
  volatile uint32_t *page = (volatile uint32_t *)(uintptr_t)to;
  command(NVMCTRL_CLEAR_BUFFER);
  for (uint32_t i = 0; i < PAGE_WORDS; i++) {
    page[i] = words[i];
  }
  command(NVMCTRL_WRITE_PAGE);
  command(NVMCTRL_INVALIDATE);
}
