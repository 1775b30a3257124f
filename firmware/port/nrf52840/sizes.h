/* sizes.h - how library and application use the nRF52840's 256 KiB of RAM. */
#ifndef POET_SIZES_H
#define POET_SIZES_H

#define BOARD_ARENA_BYTES 225280
#define BOARD_RESIDENTS 128
#define BOARD_TENSORS 1024
#define BOARD_QUEUE 32
#define BOARD_TRACE 512
#define BOARD_CACHE 23
#define BOARD_FRAME 1544 /* payload of a write of three blocks */

#endif
