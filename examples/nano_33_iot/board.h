/* board.h - what the examples use of a Nano 33 IoT next to its accelerometer:
   flash, button, LED, time and a serial port (TX, 1 Mbaud). It stands on the
   port in firmware/port. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "poet/learner.h"

/* Start clocks, pins and watchdog. Call it first. */
void board_start(void);
/* The flash after the program, as storage of a learner. The last block is not
   in it: it is for board_keep. */
struct poet_device board_device(void);
/* Keep up to 64 bytes through power-off. A power cut during board_keep loses
   them. board_kept returns false if there are none. */
void board_keep(const void *data, uint32_t size);
bool board_kept(void *data, uint32_t size);

bool board_button(void); /* true while it is pressed: D2 to ground */
void board_led(bool on);
uint32_t board_us(void);
/* Sleep, and feed the watchdog, which resets a chip that does neither for 8 s.
 */
void board_sleep(uint32_t us);

void print(const char *text);
void print_number(uint32_t value);
void print_bytes(const void *data, uint32_t size); /* as hexadecimal digits */
/* Print a line `teach LABEL NEXT_STEP SAMPLE`. Print it before the call, which
 * a power cut may end; then print a line `taught`, or `busy`. */
void print_teach(uint32_t label, uint32_t next_step, const void *sample,
                 uint32_t size);
/* Print a line `saved STEP WEIGHTS`. Return an error of poet_learner_read. */
int print_saved(struct poet_learner *learner, uint32_t step, uint32_t tensors,
                const uint32_t tensor_bytes[]);
