/* device.c - a device that takes part in a fleet over any radio; here over the
 * pipes of this process. It keeps its samples, and answers its gateway:
 *
 *   request: struct request, then `size` bytes if it writes
 *   answer:  int32_t result of the learner, then `size` bytes if it reads
 *
 * A tensor may travel in pieces of any size up to sizeof packet. The argument
 * is a file of samples, in place of a sensor: for each a label, then values. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "digits.h"

struct request {
  uint32_t what; /* 'r' read, 'w' write, 'a' adopt, 'l' learn `size` steps */
  uint32_t tensor, offset, size;
};

static struct poet_learner learner;
static uint64_t memory[digits_MEMORY_BYTES / 8];
static uint8_t blocks[digits_STORAGE_BLOCKS][512]; /* a card, or flash */
static uint8_t packet[200];                        /* what the radio carries */

static uint32_t micros(void *context) {
  (void)context;
  return (uint32_t)((double)clock() * 1e6 / CLOCKS_PER_SEC);
}

static int read_block(void *context, uint32_t block, void *data) {
  (void)context;
  memcpy(data, blocks[block], 512);
  return 0;
}

static int write_block(void *context, uint32_t block, const void *data) {
  (void)context;
  memcpy(blocks[block], data, 512);
  return 0;
}

static int learn(uint32_t steps) {
  int result = poet_learner_learn(&learner, steps);
  do { /* a device does its other work between two calls */
    result = result < 0 ? result : poet_learner_poll(&learner, 1000);
  } while (result == POET_BUSY);
  return result < 0 ? result : poet_learner_save(&learner);
}

static int32_t answer(const struct request *it) {
  switch (it->what) {
  case 'r':
    return poet_learner_read(&learner, it->tensor, it->offset, packet,
                             it->size);
  case 'w':
    return poet_learner_write(&learner, it->tensor, it->offset, packet,
                              it->size);
  case 'a':
    return poet_learner_adopt(&learner);
  default:
    return learn(it->size);
  }
}

static int teach(const char *path) {
  float sample[digits_SAMPLE_VALUES];
  uint32_t label;
  int result = 0;
  FILE *samples = fopen(path, "rb");
  while (samples != NULL && result == 0 &&
         fread(&label, sizeof label, 1, samples) == 1 &&
         fread(sample, sizeof sample, 1, samples) == 1) {
    result = poet_learner_teach(&learner, sample, label);
  }
  return samples == NULL || fclose(samples) != 0 ? -1 : result;
}

int main(int count, char **words) {
  const struct poet_device device = {.micros = micros,
                                     .blocks = digits_STORAGE_BLOCKS,
                                     .read = read_block,
                                     .write = write_block};
  int result = poet_learner_open(&learner, &digits_package, &device, memory,
                                 sizeof memory);
  result = result || count < 2 ? result : teach(words[1]);
  if (result != 0) {
    fprintf(stderr, "%s\n", poet_learner_text(result));
    return 1;
  }
  struct request it;
  while (fread(&it, sizeof it, 1, stdin) == 1) {
    const int carries = it.what == 'r' || it.what == 'w';
    if (carries && it.size > sizeof packet) {
      return 1;
    }
    if (it.what == 'w' && fread(packet, it.size, 1, stdin) != 1) {
      return 1;
    }
    const int32_t found = answer(&it);
    fwrite(&found, sizeof found, 1, stdout);
    if (it.what == 'r') {
      fwrite(packet, it.size, 1, stdout);
    }
    fflush(stdout);
  }
  return 0;
}
