/*
 * small.h - what a build for one schedule leaves out. All files of the library
 * need the same values.
 */
#ifndef POET_SMALL_H
#define POET_SMALL_H

#include <stdint.h>

/* 1: the build leaves out code that is faster with the same bits. It takes
 * less flash and more time: sums of few products have no code of their own,
 * and a Cortex-M4F has one loop for all tiles. */
#ifndef POET_SMALL
#define POET_SMALL 0
#endif

/* 0: the build has no nests. It refuses plans with the statement `stream`
 * (bad_plan). */
#ifndef POET_STREAMS
#define POET_STREAMS 1
#endif

/* 0: schedules are in memory alone (poet_load: no_schedule), and the board has
 * laid out the storage, not a host (not_blank). */
#ifndef POET_CARDS
#define POET_CARDS 1
#endif

/* The kernels of this build: bit i of POET_KERNELS stands for that with code i,
 * of POET_MORE_KERNELS for that with code 64 + i. The linker leaves out the
 * other ones. */
#ifndef POET_KERNELS
#define POET_KERNELS UINT64_MAX
#endif
#ifndef POET_MORE_KERNELS
#define POET_MORE_KERNELS UINT64_MAX
#endif

/* POET_ROWS_CRC, if defined, is the fingerprint of isa.def's rows, a uint32_t.
 * The build then does not contain their text, unless something else uses it. */

#endif
