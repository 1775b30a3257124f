/*
 * flash.c - nRF52840: NVMC erases and writes the chip's own flash. The program
 * runs from the same flash, so the chip stalls until an operation ends: 85 ms
 * for a page, 41 us for a word (chapter NVMC, electrical specification). So
 * that interrupts are served within 10 ms, a page is erased in parts, which
 * together take the time of an erase.
 *
 * State: none. CONFIG is read-only at all other times, so that no stray store
 * can change the flash.
 */
#include "chip.h"
#include "registers.h"

/* A part may take 5 % longer, and about 1 ms to be set up. */
enum { PART_MS = 8, PARTS = 11 };

/* With the comparator of the supply, an operation hangs the core if the supply
 * is low (anomaly 242). */
static void configure(uint32_t mode) {
  POWER_POFCON = mode == NVMC_READ ? POFCON_2V7 : 0;
  NVMC_CONFIG = mode;
  while (!NVMC_READY) {
  }
}

void chip_flash_erase(const uint32_t *unit, uint32_t size_bytes) {
  (void)size_bytes; /* one page */
  configure(NVMC_ERASE);
  NVMC_ERASEPAGEPARTIALCFG = PART_MS;
  for (uint32_t i = 0; i < PARTS; i++) {
    NVMC_ERASEPAGEPARTIAL = (uint32_t)(uintptr_t)unit;
    while (!NVMC_READY) {
    }
  }
  configure(NVMC_READ);
}

void chip_flash_program(const uint32_t *to, const uint32_t *words) {
  configure(NVMC_WRITE);
  *(volatile uint32_t *)(uintptr_t)to = *words;
  while (!NVMC_READY) {
  }
  configure(NVMC_READ);
}
