/* sizes.h - how library and application use the MKR1000's 32 KiB of RAM. */
#ifndef POET_SIZES_H
#define POET_SIZES_H

#define BOARD_ARENA_BYTES 24744
#define BOARD_RESIDENTS 40
#define BOARD_TENSORS 384
#define BOARD_QUEUE 8
#define BOARD_TRACE 22
#define BOARD_CACHE 4
#define BOARD_FRAME 520 /* payload of a write of one block */

#endif
