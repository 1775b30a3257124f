/* Memory of the MKR1000's 32 KiB that the library and the application use. */
#ifndef POET_SIZES_H
#define POET_SIZES_H

#define BOARD_ARENA_BYTES 24928
#define BOARD_RESIDENTS 40
#define BOARD_TENSORS 384
#define BOARD_QUEUE 8
#define BOARD_TRACE 22
#define BOARD_CACHE 4
#define BOARD_FRAME 520 /* a block in a write, and its fields */

#endif
