/* sizes.h - how library and application use the nRF52840's 256 KiB of RAM. */
#ifndef POET_SIZES_H
#define POET_SIZES_H

#define BOARD_ARENA_BYTES 225280
#define BOARD_RESIDENTS 128
#define BOARD_TENSORS 1024
#define BOARD_QUEUE 32
#define BOARD_SLABS 6144 /* of tables: see poet_rows */
#define BOARD_TRACE 480
#define BOARD_CACHE 23
#define BOARD_FRAME 1544 /* payload of a write of three blocks */
/* The store in the chip's own flash: erase unit, what one write programs, and
 * the sizes of the areas of parts and notes. */
#define BOARD_FLASH_ERASE_BLOCKS 8 /* a page of 4 KiB */
#define BOARD_FLASH_PROGRAM_BYTES 4
#define BOARD_FLASH_MODEL_BLOCKS 192
#define BOARD_FLASH_PLAN_BLOCKS 32
#define BOARD_FLASH_NOTE_BLOCKS 16

#endif
