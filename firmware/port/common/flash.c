/*
 * flash.c - the chip's own flash as storage (flash.h).
 *
 * State: `erased`, the number of erases. All else is in flash, between
 * __store_start and __store_end, which the linker script places after the
 * program. Flash is read as memory.
 *
 * Areas lie one after another, each in erase units of its own. So an erase for
 * one object never touches another one. A write programs only what differs from
 * the flash: the flash may be written only a few times between two erases.
 */
#include "flash.h"

#include <string.h>

#include "chip.h"
#include "health.h"
#include "poet/poet.h"
#include "sizes.h"

enum {
  UNIT = BOARD_FLASH_ERASE_BLOCKS,
  UNIT_BYTES = UNIT * POET_BLOCK,
  PROGRAM_WORDS = BOARD_FLASH_PROGRAM_BYTES / 4,
  NOTE_BLOCK = POET_MODEL_BLOCK + POET_NOTE_OFFSET / POET_BLOCK,
  PARTITION = 1, /* its first block */
  FIXED_BLOCKS = 3 * UNIT + BOARD_FLASH_PLAN_BLOCKS + BOARD_FLASH_MODEL_BLOCKS +
                 2 * BOARD_FLASH_NOTE_BLOCKS,
};
_Static_assert(BOARD_FLASH_PLAN_BLOCKS % UNIT == 0 &&
                   BOARD_FLASH_MODEL_BLOCKS % UNIT == 0 &&
                   BOARD_FLASH_NOTE_BLOCKS % UNIT == 0 &&
                   POET_ERASE_BLOCKS % UNIT == 0,
               "each area begins an erase unit");

extern const uint32_t __store_start[], __store_end[];

static uint32_t erased;

/* The areas, in the order in which they lie in flash; then the data area. */
static const struct {
  uint16_t first;
  uint16_t count;
} areas[] = {
    {0, UNIT},
    {POET_COMMIT_BLOCK, UNIT},
    {POET_COMMIT_BLOCK + POET_UNIT_BLOCKS, UNIT},
    {POET_MODEL_BLOCK, BOARD_FLASH_MODEL_BLOCKS},
    {POET_PLAN_BLOCK, BOARD_FLASH_PLAN_BLOCKS},
    {NOTE_BLOCK, BOARD_FLASH_NOTE_BLOCKS},
    {NOTE_BLOCK + POET_NOTE_BYTES / POET_BLOCK, BOARD_FLASH_NOTE_BLOCKS},
};

static uint32_t data_blocks(void) {
  const uint32_t all =
      (uint32_t)((uintptr_t)__store_end - (uintptr_t)__store_start) /
      POET_BLOCK;
  return (all - FIXED_BLOCKS) / UNIT * UNIT;
}

/* Return the place of a block of the card in flash, or NULL if it does not
 * exist. */
static const uint32_t *place_of(uint32_t block) {
  uint32_t before = 0;
  uint32_t at = block - PARTITION;
  for (uint32_t i = 0; i < sizeof areas / sizeof *areas; i++) {
    if (at - areas[i].first < areas[i].count) {
      return __store_start + (before + at - areas[i].first) * POET_BLOCK / 4;
    }
    before += areas[i].count;
  }
  at -= POET_DATA_BLOCK;
  return at < data_blocks() ? __store_start + (before + at) * POET_BLOCK / 4
                            : NULL;
}

/* Make the first block of a card: its partition. */
static void make_mbr(uint8_t *block) {
  enum { TYPE = 450, FIRST = 454, COUNT = 458, END = 510 };
  const uint32_t first = PARTITION;
  const uint32_t count = POET_DATA_BLOCK + data_blocks();
  memset(block, 0, POET_BLOCK);
  block[TYPE] = POET_PARTITION_TYPE;
  memcpy(block + FIRST, &first, sizeof first);
  memcpy(block + COUNT, &count, sizeof count);
  block[END] = 0x55;
  block[END + 1] = 0xaa;
}

int flash_read(uint32_t block, void *data, uint32_t count) {
  uint8_t *to = data;
  for (uint32_t i = 0; i < count; i++, to += POET_BLOCK) {
    const uint32_t *place = place_of(block + i);
    if (block + i == 0) {
      make_mbr(to);
    } else if (place) {
      memcpy(to, place, POET_BLOCK);
    } else {
      memset(to, 0, POET_BLOCK);
    }
  }
  return 0;
}

/* Program words, of which `to` must be erased where they differ. */
static POET_CHECKED int program(const uint32_t *to, const uint32_t *words) {
  bool differs = false;
  for (uint32_t i = 0; i < PROGRAM_WORDS; i++) {
    differs |= to[i] != words[i];
    if ((to[i] & words[i]) != words[i]) {
      return -1;
    }
  }
  if (differs) {
    chip_flash_program(to, words);
  }
  return 0;
}

int flash_write(uint32_t block, const void *data, uint32_t count) {
  const uint32_t *words = data;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t *to = place_of(block + i);
    health_moved();
    for (uint32_t j = 0; j < POET_BLOCK / 4; j += PROGRAM_WORDS) {
      if (!to || program(to + j, words) ||
          memcmp(to + j, words, BOARD_FLASH_PROGRAM_BYTES)) {
        return -1;
      }
      words += PROGRAM_WORDS;
    }
  }
  return 0;
}

static bool is_blank(const uint32_t *unit) {
  for (uint32_t i = 0; i < UNIT_BYTES / 4; i++) {
    if (unit[i] != UINT32_MAX) {
      return false;
    }
  }
  return true;
}

int flash_erase(uint32_t block, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t *place = place_of(block + i);
    health_moved();
    const bool begins_unit =
        place && (place - __store_start) % (UNIT_BYTES / 4) == 0;
    if (begins_unit && !is_blank(place)) {
      chip_flash_erase(place, UNIT_BYTES);
      erased++;
    }
  }
  return 0;
}

uint32_t flash_erases(void) {
  return erased;
}

static bool is_store(const struct poet_store *store) {
  return store->magic == POET_STORE_MAGIC &&
         store->crc == poet_crc(0, store, offsetof(struct poet_store, crc));
}

uint32_t flash_blocks(void) {
  const uint32_t *place = place_of(PARTITION);
  const uint32_t count = POET_DATA_BLOCK + data_blocks();
  union {
    struct poet_store store;
    uint32_t words[PROGRAM_WORDS + sizeof(struct poet_store) / 4];
  } block = {{0}};
  memcpy(&block.store, place, sizeof block.store);
  if (!is_store(&block.store)) {
    /* After an error, the library finds no store when it reads the block. */
    poet_ignore(flash_erase(PARTITION, 1));
    block.store = (struct poet_store){.magic = POET_STORE_MAGIC,
                                      .version = POET_VERSION,
                                      .total_blocks = count,
                                      .identity = chip_ticks()};
    block.store.crc =
        poet_crc(0, &block.store, offsetof(struct poet_store, crc));
    for (uint32_t i = 0; i < sizeof block.store / 4; i += PROGRAM_WORDS) {
      poet_ignore(program(place + i, block.words + i));
    }
  }
  return PARTITION + count;
}
