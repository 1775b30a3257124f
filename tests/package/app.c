/*
 * app.c - a device in a process: app DISK SAMPLES STEPS POLLS
 *
 * It teaches each sample of the file SAMPLES (a byte with the label, then the
 * sample) while it trains, and goes on until step STEPS. Its storage is the file
 * DISK, whose erase unit is UNIT. The power is cut at the call POLLS of poll: the
 * process ends with exit code 3. It prints the next step before each sample, at
 * the end its outputs for the last sample, and the bytes of all tensors.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "small.h"

static const uint32_t unit = UNIT;
static FILE *disk;
static long polls;
static uint64_t memory[small_MEMORY_BYTES / 8];
static struct poet_learner learner;

static uint32_t micros(void *context) { return ++*(uint32_t *)context; }
static int read_block(void *context, uint32_t block, void *data) {
  (void)context;
  return fseek(disk, (long)block * 512, SEEK_SET) || fread(data, 512, 1, disk) != 1;
}
static int write_block(void *context, uint32_t block, const void *data) {
  (void)context;
  return fseek(disk, (long)block * 512, SEEK_SET) || fwrite(data, 512, 1, disk) != 1;
}
static int erase(void *context, uint32_t block) {
  uint8_t blank[512];
  memset(blank, 0xff, sizeof blank);
  for (uint32_t i = 0; i < unit; i++) {
    if (write_block(context, block + i, blank)) {
      return 1;
    }
  }
  return 0;
}

static void check(const char *what, int result) {
  if (result < 0) {
    fprintf(stderr, "%s: %s\n", what, poet_learner_text(result));
    exit(1);
  }
}

static int poll(void) {
  int result;
  if (!polls--) {
    exit(3);
  }
  result = poet_learner_poll(&learner, 5);
  check("poll", result);
  return result;
}

static struct poet_learner_state state(void) {
  struct poet_learner_state now;
  check("state", poet_learner_state(&learner, &now));
  return now;
}

static void print(const void *data, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    printf("%02x", ((const uint8_t *)data)[i]);
  }
  printf("\n");
}

int main(int argc, char **argv) {
  uint32_t now = 0, next_step, steps;
  struct poet_device device;
  int label, result;
  FILE *samples;
  uint8_t sample[small_SAMPLE_BYTES], bytes[4096];
  float outputs[small_OUTPUTS];
  if (argc != 5 || !(disk = fopen(argv[1], "r+b")) || !(samples = fopen(argv[2], "rb"))) {
    return 2;
  }
  steps = (uint32_t)strtoul(argv[3], NULL, 10);
  polls = strtol(argv[4], NULL, 10);
  memset(&device, 0, sizeof device);
  device.context = &now;
  device.micros = micros;
  device.blocks = small_STORAGE_BLOCKS;
  device.read = read_block;
  device.write = write_block;
  device.erase_blocks = unit;
  device.erase = unit ? erase : NULL;
  check("open", poet_learner_open(&learner, &small_package, &device, memory, sizeof memory));
  while ((label = getc(samples)) != EOF && fread(sample, sizeof sample, 1, samples)) {
    do {
      next_step = state().next_step;
      result = poet_learner_teach(&learner, sample, (uint32_t)label);
      check("teach", result);
    } while (result == POET_BUSY && poll() >= 0);
    printf("%lu\n", (unsigned long)next_step);
    fflush(stdout);
    check("learn", poet_learner_learn(&learner, 2));
    for (int i = 0; i < 40 && poll() == POET_BUSY; i++) {
    }
  }
  if (state().step < steps) {
    check("learn", poet_learner_learn(&learner, 0));
    while (poll() == POET_BUSY) {
    }
    check("learn", poet_learner_learn(&learner, steps - state().step));
  }
  while (poll() == POET_BUSY) {
  }
  check("save", poet_learner_save(&learner));
  memset(sample, 1, sizeof sample);
  check("infer", poet_learner_infer(&learner, sample, outputs));
  print(outputs, sizeof outputs);
  for (uint32_t i = 0; i < small_TENSORS; i++) {
    check(small_tensor_names[i], poet_learner_read(&learner, i, 0, bytes, small_tensor_bytes[i]));
    print(bytes, small_tensor_bytes[i]);
  }
  return fclose(disk) || fclose(samples) || state().saved_step != steps;
}
