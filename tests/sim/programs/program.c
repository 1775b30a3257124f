/* An application of the library: it trains the toy by a schedule in program
   flash, with blank storage of few blocks in RAM and one cached block. Without
   storage, ARENA_ONLY, weights stay in RAM. Prints the CRC-32 of the weights
   after each step. */
#include "poet/poet.h"
#include "test.h"
#include "toy.h" /* made by the test */

#include <string.h>

#ifdef ARENA_ONLY
enum { BLOCKS = 0, CACHE = 0 };
#else
enum { BLOCKS = 15, CACHE = 1 };
#endif

static uint8_t stored[BLOCKS + 1][POET_BLOCK];
static uint32_t arena[ARENA_BYTES / 4];
static struct poet_resident residents[8];
static uint32_t bitmap[1];
static struct poet_transfer queue[1];
static struct poet_cache cache[CACHE + 1];
static struct poet board;

static int read_blocks(void *context, uint32_t block, void *data,
                       uint32_t count) {
  (void)context;
  memcpy(data, stored[block], count * POET_BLOCK);
  return 0;
}

static int write_blocks(void *context, uint32_t block, const void *data,
                        uint32_t count) {
  (void)context;
  if (block + count > BLOCKS)
    finish(3);
  memcpy(stored[block], data, count * POET_BLOCK);
  return 0;
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
  const struct poet_port port = {
      .blocks = BLOCKS, .read = read_blocks, .write = write_blocks};
  const struct poet_memory memory = {.arena = (uint8_t *)arena,
                                     .arena_bytes = ARENA_BYTES,
                                     .residents = residents,
                                     .resident_capacity = 8,
                                     .bitmap = bitmap,
                                     .tensor_capacity = 32,
                                     .queue = queue,
                                     .queue_capacity = 1,
                                     .cache_blocks = CACHE,
                                     .cache = cache};
  const struct poet_program program = {.model = model,
                                       .plan = plan,
                                       .model_bytes = sizeof model,
                                       .plan_bytes = sizeof plan};
  struct poet_facts facts;
  struct poet_step_result result;
  struct poet_saved saved;
  if (BLOCKS && poet_least_blocks(&program, 0) != BLOCKS)
    finish(4);
  poet_init(&board, &port, &memory);
  must(poet_load_program(&board, &program, &facts));
  for (uint16_t tensor = 0; tensor < 4; tensor++)
    write(tensor);
  must(poet_begin(&board, 0));
  for (uint32_t step = 1; step <= STEPS; step++) {
    write(0);
    write(1);
    must(poet_step(&board, step, 0, 0, &result));
    if (BLOCKS)
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
