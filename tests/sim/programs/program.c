/* An application of the library: it trains the toy by a schedule in program
   flash, with a storage of few blocks in RAM and one cached block. Prints the
   CRC-32 of the weights after each step. */
#include "poet/poet.h"
#include "test.h"
#include "toy.h" /* made by the test */

#include <string.h>

enum { FIRST = 8, BLOCKS = 1 << 17, MOST = 16 };

static struct {
  uint32_t block;
  uint8_t bytes[POET_BLOCK];
} stored[MOST];
static uint32_t used;
static uint32_t arena[ARENA_BYTES / 4];
static struct poet_resident residents[8];
static uint32_t bitmap[1];
static struct poet_transfer queue[1];
static struct poet_cache cache[1];
static struct poet_trace trace[1];
static struct poet board;

static uint32_t ticks(void *context) {
  (void)context;
  return 0;
}

static void usage(void *context, struct poet_usage *to) {
  (void)context;
  memset(to, 0, sizeof *to);
}

static void idle(void *context) {
  (void)context;
}

static uint32_t storage_blocks(void *context) {
  (void)context;
  return FIRST + BLOCKS;
}

static int read_blocks(void *context, uint32_t block, void *data,
                       uint32_t count) {
  uint8_t *to = data;
  (void)context;
  for (; count; count--, block++, to += POET_BLOCK) {
    memset(to, 0, POET_BLOCK);
    for (uint32_t i = 0; i < used; i++)
      if (stored[i].block == block)
        memcpy(to, stored[i].bytes, POET_BLOCK);
  }
  return 0;
}

static int write_blocks(void *context, uint32_t block, const void *data,
                        uint32_t count) {
  const uint8_t *from = data;
  (void)context;
  for (; count; count--, block++, from += POET_BLOCK) {
    uint32_t i = 0;
    while (i < used && stored[i].block != block)
      i++;
    if (i == MOST)
      finish(3);
    used = i == used ? used + 1 : used;
    stored[i].block = block;
    memcpy(stored[i].bytes, from, POET_BLOCK);
  }
  return 0;
}

static int flush(void *context) {
  (void)context;
  return 0;
}

static void submit(void *context, struct poet_transfer *transfer) {
  (void)context;
  (void)transfer;
  finish(4); /* the weights stay in RAM */
}

static void must(int error) {
  if (error) {
    print_hex((uint32_t)-error);
    finish(2);
  }
}

static void write(uint16_t tensor) {
  must(poet_write(&board, POET_OBJECT_TENSOR, tensor, 0, values[tensor],
                  sizes[tensor]));
}

int main(void) {
  const struct poet_port port = {.board = "test",
                                 .unique_id = "1",
                                 .tick_hz = 1000,
                                 .ticks = ticks,
                                 .usage = usage,
                                 .idle = idle,
                                 .storage_blocks = storage_blocks,
                                 .allocation_mib = storage_blocks,
                                 .read = read_blocks,
                                 .write = write_blocks,
                                 .flush = flush,
                                 .submit = submit};
  const struct poet_memory memory = {.arena = (uint8_t *)arena,
                                     .arena_bytes = ARENA_BYTES,
                                     .residents = residents,
                                     .resident_capacity = 8,
                                     .bitmap = bitmap,
                                     .tensor_capacity = 32,
                                     .queue = queue,
                                     .queue_capacity = 1,
                                     .cache_blocks = 1,
                                     .cache = cache,
                                     .trace = trace};
  const struct poet_program program = {model, plan, sizeof model, sizeof plan};
  const uint32_t partition[] = {FIRST, BLOCKS};
  struct poet_facts facts;
  struct poet_step_result result;
  struct poet_saved saved;
  stored[0].bytes[450] = POET_PARTITION_TYPE; /* of an MBR in block 0 */
  memcpy(stored[0].bytes + 454, partition, sizeof partition);
  stored[0].bytes[510] = 0x55;
  stored[0].bytes[511] = 0xaa;
  used = 1;
  poet_init(&board, &port, &memory);
  must(poet_format(&board, 0));
  must(poet_load_program(&board, &program, &facts));
  for (uint16_t tensor = 0; tensor < 4; tensor++)
    write(tensor);
  must(poet_begin(&board, 0));
  for (uint32_t step = 1; step <= STEPS; step++) {
    write(0);
    write(1);
    must(poet_step(&board, step, 0, 0, &result));
    must(poet_save(&board, &saved));
    for (uint16_t tensor = 2; tensor < 4; tensor++) {
      uint32_t crc;
      must(poet_checksum(&board, POET_OBJECT_TENSOR, tensor, sizes[tensor],
                         &crc));
      print_hex(crc);
    }
  }
  return 0;
}
