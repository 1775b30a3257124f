/* An application of the library: it trains the toy by a schedule in program
   flash, with blank storage of few blocks in RAM and one cached block. Without
   storage, ARENA_ONLY, weights stay in RAM. With SLICED, steps and saves run in
   slices of many budgets, with inferences before, after and inside them. Prints
   the outputs of an inference and the CRC-32 of the weights after each step. */
#include "poet/poet.h"
#include "test.h"
#include "toy.h" /* made by the test */

#include <string.h>

#ifdef ARENA_ONLY
enum { BLOCKS = 0, CACHE = 0 };
#else
enum { BLOCKS = 15, CACHE = 1 };
#endif

static uint8_t stored[BLOCKS ? BLOCKS : 1][POET_BLOCK];
static uint32_t arena[ARENA_BYTES / 4];
static struct poet_resident residents[8];
static uint32_t bitmap[1];
static struct poet_transfer queue[1];
static struct poet_cache cache[1];
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

#ifdef SLICED
static uint32_t begun, polls;
static uint8_t last[OUTPUT_BYTES]; /* the outputs of the weights */

/* A clock that no processor stops: each look at it takes 100 microseconds. */
static uint32_t look(void *context) {
  (void)context;
  return begun += 100;
}

static uint32_t (*const clock_or_null)(void *) = look;

static void infer(void) {
  const uint8_t *outputs;
  must(poet_infer(&board, sample, &outputs));
  memcpy(last, outputs, OUTPUT_BYTES);
}

/* Infer none to three times more. */
static void infer_again(void) {
  const uint8_t *outputs;
  for (uint32_t n = polls * 7919 % 4; n; n--) {
    must(poet_infer(&board, sample, &outputs));
    if (memcmp(last, outputs, OUTPUT_BYTES))
      finish(5);
  }
}

static void step(uint32_t number, struct poet_step_result *result) {
  int error = POET_BUSY;
  infer();
  infer_again();
  must(poet_step_begin(&board, number));
  while (error == POET_BUSY) {
    const uint8_t *outputs;
    if (polls % 3 && poet_infer(&board, sample, &outputs) != POET_ERROR_busy)
      finish(6);
    error = poet_step_poll(&board, polls++ * 7919 % 10000, result);
  }
  must(error);
  infer();
  infer_again();
}

static void save(struct poet_saved *saved) {
  int error = POET_BUSY;
  must(poet_save_begin(&board));
  while (error == POET_BUSY)
    error = poet_save_poll(&board, saved);
  must(error);
  infer_again();
}
#else
static uint32_t (*const clock_or_null)(void *) = NULL;

static void step(uint32_t number, struct poet_step_result *result) {
  must(poet_step(&board, number, 0, 0, result));
}

static void save(struct poet_saved *saved) {
  must(poet_save(&board, saved));
}
#endif

int main(void) {
  const struct poet_port port = {.tick_hz = 1000000,
                                 .ticks = clock_or_null,
                                 .blocks = BLOCKS,
                                 .read = read_blocks,
                                 .write = write_blocks};
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
  const struct poet_program forward = {.model = forward_model,
                                       .plan = forward_plan,
                                       .model_bytes = sizeof forward_model,
                                       .plan_bytes = sizeof forward_plan};
  const uint8_t *outputs;
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
  must(poet_load_forward(&board, &forward));
  for (uint32_t number = 1; number <= STEPS; number++) {
    write(0);
    write(1);
    step(number, &result);
    if (BLOCKS)
      save(&saved);
    must(poet_infer(&board, sample, &outputs));
    for (uint32_t i = 0; i < OUTPUT_BYTES; i += 4) {
      uint32_t output;
      memcpy(&output, outputs + i, 4);
      print_hex(output);
    }
    for (uint16_t tensor = 2; tensor < 4; tensor++) {
      uint32_t crc;
      must(poet_checksum(&board, POET_OBJECT_TENSOR, tensor, sizes[tensor],
                         &crc));
      print_hex(crc);
    }
  }
  return 0;
}
