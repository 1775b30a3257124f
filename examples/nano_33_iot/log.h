/* log.h - what the examples print while a learner works. log.py turns it into
   files for `poet-host replay`. It needs firmware/port and no other part of a
   board. Functions that return int return an error of the learner. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "poet/learner.h"

void print(const char *text);
void print_number(uint32_t value);
void print_bytes(const void *data, uint32_t size); /* as hexadecimal digits */

/* Print what an error means, and stop. The watchdog then restarts the board. */
void log_error(int error);
/* Print a line `step STEP, samples SAMPLES`. */
int log_state(const struct poet_learner *learner);
/* Teach a sample. The line `teach LABEL NEXT_STEP SAMPLE` comes before it,
 * since a power cut may end the call; then comes a line `taught` or, if the
 * result is POET_BUSY, `busy`. */
int log_teach(struct poet_learner *learner, const void *sample, uint32_t size,
              uint32_t label);
/* Print a line `saved STEP WEIGHTS`, after poet_learner_save. */
int log_saved(struct poet_learner *learner, uint32_t step, uint32_t tensors,
              const uint32_t tensor_bytes[]);
