/* startup.h - handlers that are entries of every chip's vector table. */
#ifndef POET_STARTUP_H
#define POET_STARTUP_H

#include <stdint.h>

typedef void handler(void);

extern uint32_t stack_top[]; /* from the linker script */
void reset_handler(void);
/* Report exception number and address over serial, then restart. Handles every
 * exception and interrupt that has no handler of its own. */
void fault_handler(void);
/* Let the chip note what was interrupted (chip_watchdog_bites). */
void watchdog_handler(void);

#endif
