/* Schedules with nests, for libFuzzer: what poet_load accepts must train, or
   infer if it is a forward program, without a memory fault, and to the bits of
   the reference.

   An input is that of schedule.h; what a board compares first is made right, so
   that the fuzzer gets to the plan. */
#include "fields.h"
#include "host.h"
#include "mutate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../random.h"

enum {
  ARENA = 1 << 17,
  CARD_BLOCKS = 1 << 17,
  RESIDENTS = 96,
  TRACED = 32,
  MOST_QUEUED = 16,
  MOST_CACHED = 8,
  MOST_BYTES = 1 << 20, /* of all tensors */
  STEPS = 5             /* slabs of a table are kept from the third on */
};
static const double MOST_WORK = 2e6; /* products, times statements */

enum counter {
  LOADED,
  TOO_LARGE,
  STEPPED,
  EQUAL,
  NOT_FINITE,
  NESTS,
  PAIRS,
  STATISTICS,
  KEPT,
  INFERRED,
  COUNTERS
};
static const char *const names[COUNTERS] = {
    "loaded", "too large", "steps",      "equal",      "not finite",
    "nests",  "pairs",     "statistics", "kept slabs", "inferences"};
static uint64_t seen[COUNTERS];

static struct card card;
static struct schedule schedule;
static struct poet *p;

uint32_t random_below(uint32_t end) {
  return any(end);
}

static void report(void) {
  for (int i = 0; i < COUNTERS; i++) {
    fprintf(stderr, "%s %" PRIu64 "\n", names[i], seen[i]);
  }
}

static void power_on(uint16_t queue, uint16_t cache) {
  if (p) {
    board_power_off(p);
  }
  card_reset(&card);
  p = board_power_on(ARENA, RESIDENTS, TENSORS, queue, cache, TRACED);
  rule(!poet_format(p, 0), "a card can be formatted");
}

struct poet *mutate_board(void) {
  board = (struct board){.card = &card, .off_at = UINT32_MAX};
  power_on(MOST_QUEUED, 3);
  return p;
}

/* Load the schedule. A plan whose header states other maxima than its bits have
   may be a good one: then the header is made right. */
static int load(void) {
  struct poet_plan_header *plan = &schedule.plan.header;
  int error = schedule_upload(p, &schedule);
  if (error == POET_ERROR_bad_plan && plan->resident_max <= RESIDENTS) {
    plan->resident_max = RESIDENTS;
    plan->queue_max = p->memory.queue_capacity;
    schedule_seal(&schedule);
    error = schedule_upload(p, &schedule);
    for (int tries = 0; tries < 2 && error == POET_ERROR_bad_plan; tries++) {
      const struct poet_decoder *decoder = &p->decoder;
      plan->statement_count = decoder->statement;
      plan->resident_max = decoder->resident_max;
      plan->queue_max = decoder->queue_max;
      plan->arena_bytes = tries ? decoder->peak_bytes : plan->arena_bytes;
      schedule_seal(&schedule);
      error = schedule_upload(p, &schedule);
    }
  }
  return error;
}

/* A forward program may have tensors in RAM alone, as its sample. */
static bool is_in_ram(uint32_t tensor) {
  return poet_is_forward(p) &&
         reference.record[tensor].place == POET_PLACE_NONE;
}

static void send(uint32_t tensor) {
  reference_fill(tensor, reference.data[tensor], true);
  if (is_in_ram(tensor)) { /* refused if the plan has no place for it */
    (void)!host_write(p, tensor, reference.data[tensor], 0, 0);
  } else if (reference.record[tensor].place != POET_PLACE_NONE) {
    rule(!host_write(p, tensor, reference.data[tensor], 0, 0),
         "a tensor can be written");
  }
}

static void compare(void) {
  for (uint32_t i = reference.stored; i < reference.count; i++) {
    const uint32_t size = reference.record[i].size_bytes;
    if (reference.current[i] == POET_NONE) {
      continue;
    }
    uint8_t *got = malloc(size);
    rule(!host_read(p, reference.current[i], got), "a weight can be read");
    rule(!memcmp(got, reference.data[i], size), "a step has the right bits");
    free(got);
  }
}

/* Return false if it does not end. */
static bool step(uint32_t number) {
  struct poet_step_result result;
  const int error = poet_step(p, number, 0, TRACED, &result);
  board_called();
  seen[STEPPED]++;
  const bool finite = reference_step(number);
  if (error == POET_ERROR_not_finite) { /* of any statement */
    seen[NOT_FINITE]++;
    return false;
  }
  rule(!error, "an accepted schedule runs");
  rule(finite, "no step is committed that is not finite");
  compare();
  reference_commit();
  seen[EQUAL]++;
  seen[KEPT] += p->memory.rows && p->memory.rows->per_slab;
  return true;
}

/* A batch is sent before each step. */
static void send_all(bool inputs) {
  for (uint32_t i = 0; i < reference.stored; i++) {
    if (inputs ==
        (is_in_ram(i) || reference.record[i].place == POET_PLACE_INPUT)) {
      send(i);
    }
  }
}

static void train(void) {
  const struct schedule_counts counts = schedule_counts(p);
  send_all(false);
  rule(!poet_begin(p, 0), "a training begins");
  send_all(true);
  for (uint32_t number = 1; number <= STEPS && step(number); number++) {
    seen[NESTS] += counts.nests;
    seen[PAIRS] += counts.pairs;
    seen[STATISTICS] += counts.statistics;
    send_all(true);
  }
}

/* Return false if it does not end. */
static bool infer(uint32_t number) {
  struct poet_step_result result;
  const int error = poet_step(p, number, 0, TRACED, &result);
  board_called();
  const bool finite = reference_step(number);
  if (error == POET_ERROR_not_finite) {
    seen[NOT_FINITE]++;
    return false;
  }
  rule(!error, "an accepted forward program runs");
  if (finite) {
    const uint32_t last = reference.count - 1;
    const uint32_t size = reference.record[last].size_bytes;
    const uint32_t index = poet_find(p, last);
    uint8_t *wanted = malloc(size);
    rule(index < p->decoder.resident_count, "outputs are in RAM at the end");
    reference_to_parts(last, reference.data[last], wanted);
    rule(!memcmp(p->memory.arena + p->memory.residents[index].offset, wanted,
                 size),
         "an inference has the right bits");
    free(wanted);
    seen[INFERRED]++;
  }
  return true;
}

static void infer_alone(void) {
  for (uint32_t number = 0; number < STEPS; number++) {
    if (number % 2 == 0) { /* weights stay from one inference to the next */
      send_all(false);
    }
    send_all(true); /* a plan may read a batch of the training, too */
    if (!infer(number)) {
      return;
    }
  }
}

/* ---- libFuzzer ---------------------------------------------------------- */

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most,
                               unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

int LLVMFuzzerInitialize(int *count, char ***arguments) {
  (void)count;
  (void)arguments;
  card_make(&card, CARD_BLOCKS);
  atexit(report);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!schedule_read(&schedule, data, size)) {
    return -1; /* keep it out of the corpus */
  }
  schedule_seal(&schedule);
  const struct poet_model *model = &schedule.model.header;
  const uint16_t queued = schedule.plan.header.queue_max;
  random_state =
      ((uint64_t)model->crc << 32 | schedule.plan.header.crc) * 2 + 1;
  board = (struct board){.card = &card,
                         .off_at = UINT32_MAX,
                         .lag = any(5),
                         .is_flash = model->flags & POET_MODEL_IN_RAM && any(2),
                         .renews_tables = !any(4)};
  power_on((uint16_t)(queued && queued < MOST_QUEUED ? queued + any(3)
                                                     : 1 + any(MOST_QUEUED)),
           (uint16_t)(1 + any(MOST_CACHED)));
  if (load()) {
    return 0;
  }
  seen[LOADED]++;
  reference_load(p);
  if (reference_work() * (p->plan.statement_count + 1.0) > MOST_WORK ||
      reference_bytes() > MOST_BYTES) {
    seen[TOO_LARGE]++;
  } else if (poet_is_forward(p)) {
    infer_alone();
  } else {
    train();
  }
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most,
                               unsigned int seed) {
  random_state = seed * 0x9e3779b97f4a7c15u + 1;
  const size_t made = mutate(data, size, most);
  return made ? made : LLVMFuzzerMutate(data, size, most);
}
