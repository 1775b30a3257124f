/* main.c - a Nano 33 IoT that learns how people walk.
 *
 * Wear the board and walk: after each window, the LED flashes once for the
 * first person, twice for the second one, and so on. To teach it, press the
 * button as often, then walk: it learns the next TAUGHT windows. */
#include <string.h>

#include "accelerometer.h"
#include "board.h"
#include "gait.h"
#include "log.h"

enum {
  SAMPLES = gait_SAMPLE_VALUES / 3, /* of a window, at 26 Hz */
  RATE_26_HZ = 2 << 4,
  QUARTERS = 4,
  MOTION = 1200, /* least change in a quarter of a window, in 0.122 mg */
  TAUGHT = 5,    /* windows after the button */
  STEPS = 12,    /* for each of them */
  FLASH_US = 150 * 1000,
  SLICE_US = 10 * 1000,
  SLEEP_US = 100 * 1000,
};

static struct poet_learner learner;
static uint64_t memory[gait_MEMORY_BYTES / 8];
static struct poet_device device;
static int16_t window[SAMPLES][3];
static int filled;
static unsigned person, to_teach; /* windows of this person */
static struct board_presses presses;
static unsigned changes; /* of the LED, still to come */
static uint32_t changed_us;

static void check(int result) {
  if (result < 0) {
    board_led(true);
    log_error(result);
  }
}

/* Return true if the board moves in each quarter of the window: somebody walks,
 * from its begin to its end. */
static bool walks(void) {
  for (int quarter = 0; quarter < QUARTERS; quarter++) {
    int32_t least = INT16_MAX, most = INT16_MIN;
    for (int i = 0; i < SAMPLES / QUARTERS; i++) {
      const int16_t z = window[quarter * (SAMPLES / QUARTERS) + i][2];
      least = z < least ? z : least;
      most = z > most ? z : most;
    }
    if (most - least < MOTION) {
      return false;
    }
  }
  return true;
}

/* Subtract the mean of each axis: it does not matter how the board is worn. */
static void centre(void) {
  for (int axis = 0; axis < 3; axis++) {
    int32_t sum = 0;
    for (int i = 0; i < SAMPLES; i++) {
      sum += window[i][axis];
    }
    for (int i = 0; i < SAMPLES; i++) {
      window[i][axis] = (int16_t)(window[i][axis] - sum / SAMPLES);
    }
  }
}

static void recognise(void) {
  float outputs[gait_OUTPUTS];
  const uint32_t began_us = board_us();
  unsigned best = 0;
  check(poet_learner_infer(&learner, window, outputs));
  for (unsigned i = 1; i < gait_OUTPUTS; i++) {
    best = outputs[i] > outputs[best] ? i : best;
  }
  print("person ");
  print_number(best + 1);
  print(" at ");
  print_number(began_us / 1000);
  print(" ms, after ");
  print_number(board_us() - began_us);
  print(" us\n");
  changes = 2 * (best + 1);
}

static void teach(void) {
  int result;
  while ((result = log_teach(&learner, window, sizeof window, person)) ==
         POET_BUSY) {
    check(poet_learner_poll(&learner, SLICE_US));
  }
  check(result);
  check(poet_learner_learn(&learner, STEPS));
}

static void add(const int16_t sample[3]) {
  memcpy(window[filled++], sample, sizeof window[0]);
  if (filled < SAMPLES) {
    return;
  }
  filled = 0;
  if (walks()) {
    centre();
    if (to_teach) {
      to_teach--;
      teach();
    } else {
      recognise();
    }
  }
}

static void look_at_button(void) {
  const unsigned count = board_presses(&presses);
  if (count && count <= gait_CLASSES) {
    person = count - 1;
    to_teach = TAUGHT;
  }
}

int main(void) {
  static int16_t samples[8][3];
  struct poet_learner_state state;
  board_start();
  device = board_device();
  check(poet_learner_open(&learner, &gait_package, &device, memory,
                          sizeof memory));
  check(log_state(&learner));
  while (!accelerometer_start(RATE_26_HZ | SENSOR_4_G)) {
    print("no LSM6DS3 answers\n");
  }
  for (;;) {
    const int result = poet_learner_poll(&learner, SLICE_US);
    check(result);
    check(poet_learner_state(&learner, &state));
    if (result == 0 && state.saved_step != state.step) {
      check(poet_learner_save(&learner));
      check(poet_learner_state(&learner, &state));
      check(log_saved(&learner, state.step, gait_TENSORS, gait_tensor_bytes));
    }
    const int count = accelerometer_read(samples, 8);
    for (int i = 0; i < count; i++) {
      add(samples[i]);
    }
    look_at_button();
    if (changes && board_us() - changed_us > FLASH_US) {
      board_led(--changes & 1);
      changed_us = board_us();
    }
    if (result == 0 && !changes && count < 8) {
      board_sleep(SLEEP_US);
    }
  }
}
