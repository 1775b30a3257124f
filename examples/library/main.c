/* main.c - learn three waves on this computer, with a package of gesture.onnx.
 */
#include <math.h>
#include <stdio.h>
#include <time.h>
#include "gesture.h"

static struct poet_learner learner;
static uint64_t memory[gesture_MEMORY_BYTES_WITHOUT_STORAGE / 8];
static float sample[gesture_SAMPLE_VALUES], out[gesture_OUTPUTS];

static uint32_t micros(void *context) {
  (void)context;
  return (uint32_t)((double)clock() * 1e6 / CLOCKS_PER_SEC);
}

static const float *wave(uint32_t gesture, uint32_t number) {
  for (uint32_t i = 0; i < 128; i++) { /* of x; y and z stay 0 */
    sample[i] = (float)sin(0.06 * (1 + 2 * gesture) * (i + 7.0 * number));
  }
  return sample;
}

int main(void) {
  const struct poet_device device = {.micros = micros};
  int code = poet_learner_open(&learner, &gesture_package, &device, memory,
                               sizeof memory);
  for (uint32_t i = 0; code == 0 && i < 24; i++) {
    code = poet_learner_teach(&learner, wave(i % 3, i), i % 3);
  }
  code = code ? code : poet_learner_learn(&learner, 600);
  while (code >= 0 && (code = poet_learner_poll(&learner, 1000))) {
  }
  for (uint32_t i = 0; code == 0 && i < 3; i++) {
    code = poet_learner_infer(&learner, wave(i, 99), out);
    printf("gesture %u: %6.2f %6.2f %6.2f\n", i + 1, out[0], out[1], out[2]);
  }
  printf("%s\n", poet_learner_text(code));
  return code != 0;
}
