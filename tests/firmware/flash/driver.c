/* driver.c - flash.c of the bare-metal ports on this computer: the flash is an
   array, and the power may fail during any erase or write. State: the counts
   below. After a cut, the flash does not change any more. */
#include <string.h>

#include "chip.h"
#include "flash.h"
#include "health.h"
#include "sizes.h"

enum { WORDS = FLASH_BYTES / 4 };

uint32_t flash[WORDS] __attribute__((aligned(4096)));
__asm__(".globl __store_start, __store_end\n"
        ".set __store_start, flash\n"
        ".set __store_end, flash + " FLASH_TEXT);

uint32_t operations, cut_at; /* erases and writes so far; 0: no cut */
bool is_off;

static bool begin(void) {
  if (!is_off && ++operations == cut_at) {
    is_off = true;
    return true;
  }
  return false;
}

void chip_flash_program(const uint32_t *to, const uint32_t *words) {
  const bool was_off = is_off;
  const uint32_t size = BOARD_FLASH_PROGRAM_BYTES / 4;
  const bool cut = begin();
  uint32_t *at = flash + (to - flash);
  for (uint32_t i = 0; i < size && !was_off; i++) {
    if (!cut) {
      at[i] &= words[i];
    } else if (i < size / 2 || size == 1) {
      at[i] &= words[i] | 0xffff0000u;
    }
  }
}

/* Rows of 256 bytes are erased one after another. */
void chip_flash_erase(const uint32_t *unit, uint32_t size_bytes) {
  const uint32_t piece = ERASE_BYTES;
  uint8_t *at = (uint8_t *)(flash + (unit - flash));
  for (uint32_t i = 0; i < size_bytes; i += piece) {
    const bool was_off = is_off;
    const bool cut = begin();
    if (!was_off) {
      memset(at + i, 0xff, cut ? piece / 2 : piece);
    }
    for (uint32_t j = piece / 2; cut && j < piece; j++) {
      at[i + j] |= (uint8_t)(37 * j);
    }
  }
}

void health_moved(void) {
}

uint32_t chip_ticks(void) {
  return 1000 + operations;
}
