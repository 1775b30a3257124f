/* Learns from the file that its first argument names: label and sample, one after another. Its
 * storage is in RAM, with the erase unit UNIT. It prints its weights, then its outputs. */
#include <stdio.h>
#include <string.h>
#include "small.h"

#define BLOCKS (small_STORAGE_BLOCKS)
static uint8_t disk[BLOCKS][512];
static uint64_t memory[small_MEMORY_BYTES / 8];
static struct poet_learner learner;

static uint32_t micros(void *context) { return ++*(uint32_t *)context; }
static int read_block(void *context, uint32_t block, void *data) {
  (void)context;
  memcpy(data, disk[block], 512);
  return 0;
}
static int write_block(void *context, uint32_t block, const void *data) {
  (void)context;
  memcpy(disk[block], data, 512);
  return 0;
}
static int erase(void *context, uint32_t block) {
  (void)context;
  memset(disk[block], 0xff, UNIT * 512);
  return 0;
}

static int failed(const char *what, int result) {
  fprintf(stderr, "%s: %s\n", what, poet_learner_text(result));
  return 1;
}

int main(int argc, char **argv) {
  uint32_t now = 0;
  struct poet_device device;
  int label;
  FILE *samples = fopen(argv[argc - 1], "rb");
  uint8_t sample[small_SAMPLE_BYTES], bytes[512];
  float outputs[small_OUTPUTS];
  memset(&device, 0, sizeof device);
  memset(disk, UNIT ? 0xff : 0, sizeof disk);
  device.context = &now;
  device.micros = micros;
  device.blocks = BLOCKS;
  device.read = read_block;
  device.write = write_block;
  device.erase_blocks = UNIT;
  device.erase = UNIT ? erase : NULL;
  int result = poet_learner_open(&learner, &small_package, &device, memory, sizeof memory);
  if (result) {
    return failed("open", result);
  }
  while ((label = getc(samples)) != EOF && fread(sample, sizeof sample, 1, samples)) {
    if ((result = poet_learner_teach(&learner, sample, (uint32_t)label)) != 0) {
      return failed("teach", result);
    }
  }
  fclose(samples);
  poet_learner_learn(&learner, 20);
  while ((result = poet_learner_poll(&learner, 50)) == POET_BUSY) {
  }
  if (result || (result = poet_learner_save(&learner)) != 0 ||
      (result = poet_learner_infer(&learner, sample, outputs)) != 0) {
    return failed("poll", result);
  }
  for (uint32_t i = 0; i < small_TENSORS; i++) {
    if ((result = poet_learner_read(&learner, i, 0, bytes, small_tensor_bytes[i])) != 0) {
      return failed(small_tensor_names[i], result);
    }
    fwrite(bytes, small_tensor_bytes[i], 1, stdout);
  }
  fwrite(outputs, sizeof outputs, 1, stdout);
  return 0;
}
