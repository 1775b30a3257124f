/* main.c - learn three waves on this computer, with a package of gesture.onnx.
 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "gesture.h"

static struct poet_learner learner;
static uint64_t memory[gesture_MEMORY_BYTES_WITHOUT_STORAGE / 8];

static uint32_t micros(void *context) {
  (void)context;
  return (uint32_t)((double)clock() * 1e6 / CLOCKS_PER_SEC);
}

static void wave(float *sample, uint32_t gesture, uint32_t number) {
  for (uint32_t i = 0; i < gesture_SAMPLE_VALUES; i++) { /* y and z are still */
    const double angle = 0.06 * (1 + 2 * gesture) * (i + 7.0 * number);
    sample[i] = i < 128 ? (float)sin(angle) : 0;
  }
}

int main(void) {
  const struct poet_device device = {.micros = micros};
  float sample[gesture_SAMPLE_VALUES], outputs[gesture_OUTPUTS];
  int result = poet_learner_open(&learner, &gesture_package, &device, memory,
                                 sizeof memory);
  for (uint32_t i = 0; result == 0 && i < 24; i++) {
    wave(sample, i % 3, i);
    result = poet_learner_teach(&learner, sample, i % 3);
  }
  result = result ? result : poet_learner_learn(&learner, 600);
  do
    result = result < 0 ? result : poet_learner_poll(&learner, 1000);
  while (result == POET_BUSY);
  for (uint32_t i = 0; result == 0 && i < 3; i++) {
    wave(sample, i, 99);
    result = poet_learner_infer(&learner, sample, outputs);
    printf("gesture %u: %6.2f %6.2f %6.2f\n", i + 1, outputs[0], outputs[1],
           outputs[2]);
  }
  printf("%s\n", poet_learner_text(result));
  return result != 0;
}
