/* Memory of the MKR1000's 32 KiB that the library and the application use. */
#ifndef POET_SIZES_H
#define POET_SIZES_H

#define BOARD_NAME "mkr1000"
#define BOARD_ARENA_BYTES 24576
#define BOARD_RESIDENTS 48
#define BOARD_TENSORS 512
#define BOARD_QUEUE 12
#define BOARD_TRACE 32
#define BOARD_FRAME 1024

#endif
