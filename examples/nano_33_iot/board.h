/* board.h - what the examples use of a Nano 33 IoT next to its accelerometer:
   flash, button, LED and time. It stands on the port in firmware/port. */
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
/* Presses that follow each other. Begin with zeros. */
struct board_presses {
  unsigned count; /* so far */
  bool is_down;
  uint32_t last_us;
};
/* Look at the button. Return the number of presses once it is complete, a
 * second after the last one, and 0 otherwise. */
unsigned board_presses(struct board_presses *presses);
void board_led(bool on);
uint32_t board_us(void);
/* Sleep, and feed the watchdog, which resets a chip that does neither for 16 s.
 */
void board_sleep(uint32_t us);
