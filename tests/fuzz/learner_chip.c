/* A learner on a chip's own port and flash. It teaches a sample before each
 * step, saves now and then, and prints what examples/nano_33_iot/log.py reads.
 */
#include <string.h>

#include "chip.h"
#include "health.h"
#include "log.h"
#include "sizes.h"
#include "small.h"

enum {
  STEPS = 24,
  SAVE_EVERY = 5,
  BLOCK_BYTES = 512,
  UNIT = BOARD_FLASH_ERASE_BLOCKS,
  WRITE_BYTES = BOARD_FLASH_PROGRAM_BYTES,
};
extern const uint8_t __store_start[];
static struct poet_learner learner;
static struct poet_learner_state state;
static uint64_t memory[small_MEMORY_BYTES / 8];
static uint32_t operations; /* of the flash */
static uint32_t polls;

static uint32_t micros(void *context) {
  (void)context;
  chip_feed_watchdog();
  return chip_ticks();
}

static int read_block(void *context, uint32_t block, void *data) {
  (void)context;
  memcpy(data, __store_start + block * BLOCK_BYTES, BLOCK_BYTES);
  return 0;
}

static int write_block(void *context, uint32_t block, const void *data) {
  uint32_t words[WRITE_BYTES / 4];
  (void)context;
  for (uint32_t at = 0; at < BLOCK_BYTES; at += WRITE_BYTES) {
    memcpy(words, (const uint8_t *)data + at, WRITE_BYTES);
    chip_flash_program(
        (const uint32_t *)(__store_start + block * BLOCK_BYTES + at), words);
    operations++;
  }
  return 0;
}

static int erase(void *context, uint32_t block) {
  (void)context;
  chip_flash_erase((const uint32_t *)(__store_start + block * BLOCK_BYTES),
                   UNIT * BLOCK_BYTES);
  operations++;
  return 0;
}

static const struct poet_device device = {.micros = micros,
                                          .blocks = small_STORAGE_BLOCKS,
                                          .read = read_block,
                                          .write = write_block,
                                          .erase_blocks = UNIT,
                                          .erase = erase};

static void check(int result) {
  if (result < 0) {
    log_error(result);
  }
}

static void look(void) {
  check(poet_learner_state(&learner, &state));
}

/* The number of the sample is the step that may draw it first. */
static void teach(void) {
  int16_t sample[small_SAMPLE_VALUES];
  int result;
  do {
    look();
    const uint32_t label = state.next_step * 7 % 5 % small_CLASSES;
    for (uint32_t i = 0; i < small_SAMPLE_VALUES; i++) {
      sample[i] = (int16_t)((state.next_step * 2654435761u >> i % 16) % 128);
    }
    result = log_teach(&learner, sample, sizeof sample, label);
    check(result);
    check(poet_learner_poll(&learner, 0));
  } while (result == POET_BUSY);
}

static void save(void) {
  check(poet_learner_save(&learner));
  look();
  check(log_saved(&learner, state.step, small_TENSORS, small_tensor_bytes));
}

/* Works in slices with budgets of 0 to 10 ms. Inferences come between the
   slices: they find steps and saves that are not finished. */
static void work(void) {
  static const int16_t sample[small_SAMPLE_VALUES];
  float outputs[small_OUTPUTS];
  int result;
  do {
    polls++;
    result = poet_learner_poll(&learner, polls * 2654435761u % 10001);
    check(result);
    if (polls % 3 == 0) {
      check(poet_learner_infer(&learner, sample, outputs));
    }
  } while (result == POET_BUSY);
}

int main(void) {
  health_start();
  chip_start();
  check(poet_learner_open(&learner, &small_package, &device, memory,
                          sizeof memory));
  check(log_state(&learner));
  look();
  for (; state.step < STEPS; look()) {
    teach();
    check(poet_learner_learn(&learner, 1));
    work();
    if ((state.step + 1) % SAVE_EVERY == 0) {
      save();
    }
  }
  save();
  print("operations ");
  print_number(operations);
  print("\n");
  for (;;) {
    chip_feed_watchdog();
  }
}
