/*
 * flash.h - the chip's own flash as storage, for boards without a card.
 *
 * It shows the blocks of a card of which only some exist (FORMAT.md): the areas
 * that a schedule without storage needs. All functions run in the thread, and
 * return when the flash is no longer busy.
 */
#ifndef POET_FLASH_H
#define POET_FLASH_H

#include "poet/port.h"

/* Return the number of blocks, and write an empty store if the flash was never
 * used. */
uint32_t flash_blocks(void);
/* As the functions of struct poet_port. Blocks must be erased before they are
 * written. */
POET_CHECKED int flash_read(uint32_t block, void *data, uint32_t count);
POET_CHECKED int flash_write(uint32_t block, const void *data, uint32_t count);
POET_CHECKED int flash_erase(uint32_t block, uint32_t count);
/* Return the number of erased units since the start. */
uint32_t flash_erases(void);

#endif
