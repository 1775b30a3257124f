/* Learns one sample on a board's own port, and switches the LED on if all went well. */
#include <small.h>

#include "chip.h"
#include "health.h"

static struct poet_learner learner;
static uint64_t memory[small_MEMORY_BYTES_WITHOUT_STORAGE / 8];

static uint32_t micros(void *context) {
  (void)context;
  chip_feed_watchdog();
  return chip_ticks();
}

int main(void) {
  const struct poet_device device = {.micros = micros};
  struct poet_learner_state state;
  float outputs[small_OUTPUTS];
  int16_t sample[small_SAMPLE_VALUES] = {1, 2, 3};
  health_start();
  chip_start();
  int failed = poet_learner_open(&learner, &small_package, &device, memory, sizeof memory);
  failed |= poet_learner_teach(&learner, sample, 1);
  failed |= poet_learner_learn(&learner, 2);
  while (poet_learner_poll(&learner, 1000) == POET_BUSY) {
  }
  failed |= poet_learner_infer(&learner, sample, outputs);
  failed |= poet_learner_state(&learner, &state);
  chip_led(!failed && state.step == 2);
  for (;;) {
    chip_feed_watchdog();
  }
}
