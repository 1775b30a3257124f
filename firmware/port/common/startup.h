/* startup.h - the entries of every vector table. */
#ifndef POET_STARTUP_H
#define POET_STARTUP_H

#include <stdint.h>

typedef void handler(void);

extern uint32_t stack_top[]; /* of the linker script */
void reset_handler(void);
/* Reports where, over serial, and starts again. */
void fault_handler(void);

/* The first sixteen entries. */
#define CORE_VECTORS                                                           \
  [0] = (handler *)(void *)stack_top, [1] = reset_handler,                     \
  [2 ... 6] = fault_handler, [11] = fault_handler, [12] = fault_handler,       \
  [14] = fault_handler, [15] = fault_handler

#endif
