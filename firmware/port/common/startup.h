/* startup.h - the entries of every vector table. */
#ifndef POET_STARTUP_H
#define POET_STARTUP_H

#include <stdint.h>

typedef void handler(void);

extern uint32_t stack_top[]; /* of the linker script */
void reset_handler(void);
/* Reports which exception it was and where, over serial, and starts again.
 * Every exception and interrupt that nobody else handles comes here. */
void fault_handler(void);

#endif
