/* main.c - a Nano 33 IoT that learns gestures.
 *
 * Move the board: after the gesture, the LED flashes once for the first
 * gesture, twice for the second one, and so on. If that was wrong, or the
 * gesture is new, press the button as often: the board learns it. */
#include <string.h>

#include "accelerometer.h"
#include "board.h"
#include "gesture.h"
#include "log.h"

enum {
  SAMPLES = gesture_SAMPLE_VALUES / 3, /* of a window, at 104 Hz */
  BEFORE = 16,     /* of them, samples before the motion is noticed */
  APART = 4,       /* samples that are compared to notice a motion */
  MOTION = 2000,   /* their least distance, in units of 0.122 mg */
  PAUSE = 2 * 104, /* samples after a gesture: the hand presses the button */
  STEPS = 40,      /* for each taught sample */
  FLASH_US = 200 * 1000,
  SLICE_US = 10 * 1000,
  SLEEP_US = 25 * 1000,
};

static struct poet_learner learner;
static uint64_t memory[gesture_MEMORY_BYTES / 8];
static struct poet_device device;
/* The latest gesture, for the model: changes since its first sample, so that it
   does not matter how the hand holds the board. */
static int16_t window[3][SAMPLES];
static int filled = SAMPLES;      /* its samples so far */
static int16_t recent[BEFORE][3]; /* the latest samples */
static int16_t rest[3];           /* the first sample of the window */
static int awaited = BEFORE;      /* samples before the next gesture */
static struct board_presses presses;
static unsigned changes; /* of the LED, still to come */
static uint32_t changed_us;

static void check(int result) {
  if (result < 0) {
    board_led(true);
    log_error(result);
  }
}

static void recognise(void) {
  float outputs[gesture_OUTPUTS];
  const uint32_t began_us = board_us();
  unsigned best = 0;
  check(poet_learner_infer(&learner, window, outputs));
  for (unsigned i = 1; i < gesture_OUTPUTS; i++) {
    best = outputs[i] > outputs[best] ? i : best;
  }
  print("gesture ");
  print_number(best + 1);
  print(" after ");
  print_number(board_us() - began_us);
  print(" us\n");
  changes = 2 * (best + 1);
}

static bool moves(void) {
  int32_t distance = 0;
  for (int axis = 0; axis < 3; axis++) {
    const int32_t change =
        recent[BEFORE - 1][axis] - recent[BEFORE - 1 - APART][axis];
    distance += change < 0 ? -change : change;
  }
  return distance > MOTION;
}

static void append(const int16_t sample[3]) {
  for (int axis = 0; axis < 3; axis++) {
    window[axis][filled] = (int16_t)(sample[axis] - rest[axis]);
  }
  filled++;
}

static void add(const int16_t sample[3]) {
  memmove(recent, recent + 1, sizeof recent - sizeof recent[0]);
  memcpy(recent[BEFORE - 1], sample, sizeof recent[0]);
  if (filled < SAMPLES) {
    append(sample);
    if (filled == SAMPLES) {
      recognise();
      awaited = PAUSE;
    }
  } else if (awaited) {
    awaited--;
  } else if (!presses.count && moves()) {
    filled = 0;
    memcpy(rest, recent[0], sizeof rest);
    for (int i = 0; i < BEFORE; i++) {
      append(recent[i]);
    }
  }
}

static void teach(unsigned gesture) {
  int result;
  while ((result = log_teach(&learner, window, sizeof window, gesture)) ==
         POET_BUSY) {
    check(poet_learner_poll(&learner, SLICE_US));
  }
  check(result);
  check(poet_learner_learn(&learner, STEPS));
}

static void look_at_button(void) {
  const unsigned count = board_presses(&presses);
  if (count && count <= gesture_CLASSES) {
    teach(count - 1);
  }
}

int main(void) {
  static int16_t samples[8][3];
  struct poet_learner_state state;
  board_start();
  device = board_device();
  check(poet_learner_open(&learner, &gesture_package, &device, memory,
                          sizeof memory));
  check(poet_learner_state(&learner, &state));
  if (state.samples) {
    check(poet_learner_learn(&learner, STEPS)); /* a power cut ends training */
  }
  check(log_state(&learner));
  while (!accelerometer_start(SENSOR_104_HZ | SENSOR_4_G)) {
    print("no LSM6DS3 answers\n");
  }
  for (;;) {
    const int result = poet_learner_poll(&learner, SLICE_US);
    check(result);
    check(poet_learner_state(&learner, &state));
    if (result == 0 && state.saved_step != state.step) {
      check(poet_learner_save(&learner));
      check(poet_learner_state(&learner, &state));
      check(log_saved(&learner, state.step, gesture_TENSORS,
                      gesture_tensor_bytes));
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
    if (result == 0 && count < 8) {
      board_sleep(SLEEP_US);
    }
  }
}
