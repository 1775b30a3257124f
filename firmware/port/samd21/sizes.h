/* sizes.h - how library and application use the chip's 32 KiB of RAM. */
#ifndef POET_SIZES_H
#define POET_SIZES_H

#define BOARD_ARENA_BYTES 24576
#define BOARD_RESIDENTS 40
#define BOARD_TENSORS 512
#define BOARD_QUEUE 8
#define BOARD_TRACE 16
#define BOARD_CACHE 4
#define BOARD_FRAME 520 /* payload of a write of one block */
/* The store in the chip's own flash: erase unit, what one write programs, and
 * the sizes of the areas of parts and notes. */
#define BOARD_FLASH_ERASE_BLOCKS 1 /* two rows of 256 bytes */
#define BOARD_FLASH_PROGRAM_BYTES 64
#define BOARD_FLASH_MODEL_BLOCKS 80
#define BOARD_FLASH_PLAN_BLOCKS 16
#define BOARD_FLASH_NOTE_BLOCKS 8

#endif
