/* main.c - a Nano 33 IoT that learns how a machine vibrates, then warns.
 *
 * It teaches itself the first LEARNED windows. From MEASURED more it takes how
 * large errors of the model are, and from then on it lights its LED if errors
 * are much larger. Weights and limit stay in flash. */
#include <math.h>

#include "accelerometer.h"
#include "board.h"
#include "log.h"
#include "machine.h"
#include "spectrum.h"

enum {
  LEARNED = 60,  /* windows */
  STEPS = 10,    /* for each of them */
  MEASURED = 60, /* windows */
  IN_A_ROW = 3,  /* windows above the limit before it warns */
  RATE_833_HZ = 7 << 4,
  AXIS = 2,
  SLICE_US = 5 * 1000,
};
static const float DEVIATIONS = 6;

static struct poet_learner learner;
static uint64_t memory[machine_MEMORY_BYTES / 8];
static struct poet_device device;
static struct poet_learner_state state;
static int16_t window[SPECTRUM_SAMPLES];
static unsigned filled;
static float limit; /* 0: not known yet */
static float sum, squares;
static unsigned measured, in_a_row;

static void check(int result) {
  if (result < 0) {
    log_error(result);
  }
}

static void teach(const float bands[SPECTRUM_BANDS]) {
  const int result =
      log_teach(&learner, bands, SPECTRUM_BANDS * sizeof bands[0], 0);
  check(result);
  if (result != POET_BUSY) {
    check(poet_learner_learn(&learner, STEPS));
  }
}

static void measure(float error) {
  sum += error;
  squares += error * error;
  if (++measured == MEASURED) {
    const float mean = sum / MEASURED;
    const float variance = squares / MEASURED - mean * mean;
    limit = mean + DEVIATIONS * sqrtf(variance > 0 ? variance : 0);
    board_keep(&limit, sizeof limit);
    print("limit ");
    print_number((uint32_t)(limit * 1e6f));
    print("\n");
  }
}

static void judge(const float bands[SPECTRUM_BANDS]) {
  float outputs[machine_OUTPUTS], error = 0;
  check(poet_learner_infer(&learner, bands, outputs));
  for (unsigned i = 0; i < SPECTRUM_BANDS; i++) {
    error += (outputs[i] - bands[i]) * (outputs[i] - bands[i]);
  }
  if (limit == 0) {
    measure(error);
    return;
  }
  in_a_row = error > limit ? in_a_row + 1 : 0;
  print(in_a_row >= IN_A_ROW ? "warning " : "normal ");
  print_number((uint32_t)(error * 1e6f));
  print("\n");
  board_led(in_a_row >= IN_A_ROW);
}

static void add(int16_t sample) {
  float bands[SPECTRUM_BANDS];
  window[filled++] = sample;
  if (filled == SPECTRUM_SAMPLES) {
    filled = 0;
    spectrum(window, bands);
    check(poet_learner_state(&learner, &state));
    if (state.step + state.wanted < LEARNED * STEPS) {
      teach(bands);
    } else if (state.saved_step >= LEARNED * STEPS) {
      judge(bands);
    }
  }
}

int main(void) {
  static int16_t samples[32][3];
  board_start();
  device = board_device();
  check(poet_learner_open(&learner, &machine_package, &device, memory,
                          sizeof memory));
  check(log_state(&learner));
  if (!board_kept(&limit, sizeof limit)) {
    limit = 0;
  }
  while (!accelerometer_start(RATE_833_HZ | SENSOR_4_G)) {
    print("no LSM6DS3 answers\n");
  }
  for (;;) {
    const int result = poet_learner_poll(&learner, SLICE_US);
    check(result);
    check(poet_learner_state(&learner, &state));
    if (result == 0 && state.saved_step != state.step) {
      check(poet_learner_save(&learner));
      check(log_saved(&learner, state.step, machine_TENSORS,
                      machine_tensor_bytes));
    }
    const int count = accelerometer_read(samples, 32);
    for (int i = 0; i < count; i++) {
      add(samples[i][AXIS]);
    }
    if (result == 0 && count < 32) {
      board_sleep(SLICE_US * 4);
    }
  }
}
