/* Random faults of a card while a schedule trains on it.

   A host is emulated: after an error it starts again, loads the schedule, sends
   it again if the load fails, and continues from the committed step. It sends
   batches ahead, and repeats requests. Outcomes: the weights of the last step
   are those of the reference, with or without an error on the way; or there are
   errors for good. Weights of a committed step that can be read and are others
   are `silent`: the program counts them, and describes the round.

   FILE is an input of schedule.h. */
#include "faults.h"
#include "host.h"
#include "schedule.h"

#include <stdlib.h>
#include <string.h>

enum outcome { EQUAL, LATER_EQUAL, REFUSED, SILENT, OUTCOMES };

enum {
  ARENA = 1 << 17,
  CARD_BLOCKS = 1 << 17,
  RESIDENTS = 96,
  TRACED = 32,
  STEPS = 6,
  ROUNDS_OF_FILE = 32, /* one after the other, because a file takes time */
  MOST_FILES = 4096,
  MOST_TRIES = 14, /* until a training is given up */
  SETS = 2,        /* of values: one with a reference, one of another card */
  HAPPENED = (FAULT_KINDS + 1) * OUTCOMES, /* before: runs by fault, several,
                                              and outcome */
  UNREACHED,
  STEPPED,
  NESTS,
  PAIRS,
  AHEAD,
  REUSED,
  RESTARTED,
  UNCOMMITTED,
  STAYING,
  SEEN
};
#include "../fuzz.h"

#define OUTCOMES_OF(kind, text)                                                \
  text ": equal", text ": an error, then equal", text ": an error for good",   \
      text ": silent",

static const char *const names[SEEN] = {
    FAULT_LIST(OUTCOMES_OF) OUTCOMES_OF(, "several faults") "faults",
    "not reached",
    "steps",
    "nests",
    "pairs",
    "batches ahead",
    "cards used again",
    "new starts",
    "steps without a commit",
    "steps with tensors that stay"};

static struct card card;
static struct schedule schedule;
static struct schedule_counts counts;
static struct poet *p;
/* Row-major values of stored tensors after each step; of INPUT tensors, those
   that the step uses. Of set 1, those that a host sends. */
static uint8_t *values[SETS][STEPS + 1][TENSORS];
static const char *usable[MOST_FILES];
static uint32_t usable_count, opened = POET_NONE;
static uint32_t clean_begin[2], clean_end[2]; /* writes and reads, no faults */

/* What this round has chosen. */
static struct {
  uint32_t set;
  uint32_t most;    /* bytes of a request; 0: any */
  uint32_t repeats; /* one request in this many */
  uint16_t cache, queue;
  bool formats;
} host;
static bool had_error;
static uint32_t ahead;    /* the step whose batch is on the card; 0: none */
static uint32_t ahead_in; /* polls until the next batch is sent */

uint32_t random_below(uint32_t end) {
  return any(end);
}

/* ---- board -------------------------------------------------------------- */

static void power_on(void) {
  if (p) {
    board_power_off(p);
  }
  faults_power_on();
  board.now = any(3) ? any(100000) : UINT32_MAX - any(4000);
  p = board_power_on(ARENA, RESIDENTS, TENSORS, host.queue, host.cache, TRACED);
  ahead = 0;
}

static bool is_input(uint32_t tensor) {
  return reference.record[tensor].place == POET_PLACE_INPUT;
}

static int send(uint32_t tensor, uint32_t step) {
  return host_write(p, tensor, values[host.set][step][tensor], host.most,
                    host.repeats);
}

static int send_batch(uint32_t step) {
  int error = 0;
  for (uint32_t i = 0; i < reference.stored && !error; i++) {
    error = is_input(i) ? send(i, step) : 0;
  }
  return error;
}

/* While a step runs, the host sends the next batch. */
static int poll(void *context) {
  (void)context;
  const uint32_t next = p->status.step + 1;
  if (p->status.running && !ahead_in-- && next <= STEPS && !send_batch(next)) {
    seen[AHEAD]++;
    ahead = next;
  }
  return 0;
}

/* Begin a training. */
static int begin(void) {
  int error = poet_ready(p);
  if (error || host.formats) {
    error = poet_format(p, 0);
  }
  error = error ? error : schedule_upload(p, &schedule);
  for (uint32_t i = 0; i < reference.stored && !error; i++) {
    error =
        reference.record[i].place != POET_PLACE_NONE ? send(i, is_input(i)) : 0;
  }
  error = error ? error : poet_begin(p, 0);
  board_called();
  return error;
}

static int resume(void) {
  int error = schedule_load(p, &schedule);
  if (error) {
    error = poet_ready(p);
    error = error ? error : schedule_upload(p, &schedule);
  }
  board_called();
  return error;
}

static bool is_in_training(void) {
  return poet_committed(p) && p->committed.now.step <= STEPS;
}

static int train(void) {
  struct poet_step_result result;
  struct poet_saved saved;
  int error = 0;
  while (!error && is_in_training() && poet_last_step(p) < STEPS) {
    const uint32_t step = poet_last_step(p) + 1;
    error = ahead == step ? 0 : send_batch(step);
    ahead = 0;
    ahead_in = any(3) ? any(60) : UINT32_MAX;
    p->poll = poll;
    error = error ? error : poet_step(p, step, 0, TRACED, &result);
    p->poll = NULL;
    board_called();
    seen[STEPPED]++;
    if (!error) {
      seen[NESTS] += counts.nests;
      seen[PAIRS] += counts.pairs;
      seen[UNCOMMITTED] += poet_uncommitted(p) != 0;
      seen[STAYING] += p->plan.home_count != 0;
      error = any(16) ? 0 : poet_save(p, &saved);
      board_called();
    }
  }
  return error ? error : poet_save(p, &saved);
}

/* Read the weights of the committed step. Return SILENT if they are others. */
static enum outcome look(void) {
  struct poet_saved saved;
  enum outcome found = poet_save(p, &saved) ? REFUSED : EQUAL;
  const uint32_t step = p->committed.now.step;
  for (uint32_t i = 0; i < reference.stored && found == EQUAL; i++) {
    const uint32_t size = reference.record[i].size_bytes;
    if (reference.record[i].place != POET_PLACE_CURRENT) {
      continue;
    }
    uint8_t *got = malloc(size);
    if (host_read(p, i, got)) {
      found = REFUSED;
    } else if (memcmp(got, values[host.set][step][i], size)) {
      found = SILENT;
    }
    free(got);
  }
  board_called();
  return found;
}

/* Look at the end of a training, then again with another board. */
static enum outcome look_twice(void) {
  enum outcome found =
      is_in_training() && p->committed.now.step == STEPS ? look() : REFUSED;
  if (found == EQUAL) {
    power_on();
    found = resume() || !is_in_training() || p->committed.now.step != STEPS
                ? REFUSED
                : look();
  }
  return found;
}

/* A new start, after an error; the board may have lost its power too. */
static void start_again(void) {
  seen[RESTARTED]++;
  had_error = true;
  ahead = 0;
  if (board_is_off() || any(2)) {
    power_on();
  }
}

static enum outcome run(void) {
  bool begun = false;
  uint32_t kept = 0; /* the step that a board has committed last */
  had_error = false;
  for (uint32_t tries = 0; tries < MOST_TRIES; tries++) {
    if (tries) {
      kept = begun && is_in_training() ? p->committed.now.step : kept;
      start_again();
    }
    if (begun ? resume() : begin()) {
      continue;
    }
    begun = true;
    rule(!faults_only_cut() || poet_last_step(p) - kept <= STEPS - kept,
         "a board finds the committed step after a power cut");
    if (!is_in_training()) {
      return REFUSED;
    }
    if (any(2) && look() == SILENT) {
      return SILENT;
    }
    if (train()) {
      continue;
    }
    const enum outcome found = look_twice();
    if (found != REFUSED) {
      return found == EQUAL && had_error ? LATER_EQUAL : found;
    }
  }
  return REFUSED;
}

/* ---- files -------------------------------------------------------------- */

static void start_card(void) {
  board = (struct board){.card = &card, .off_at = UINT32_MAX};
  if (p) {
    board_power_off(p);
    p = NULL;
  }
  faults_start(&card);
}

static bool has_schedule(const char *path) {
  static uint8_t data[1 << 20];
  FILE *file = fopen(path, "rb");
  rule(file, "a file can be read");
  const size_t size = fread(data, 1, sizeof data, file);
  fclose(file);
  return schedule_read(&schedule, data, size);
}

static void *copy_of(uint32_t tensor) {
  const uint32_t size = reference.record[tensor].size_bytes;
  void *made = malloc(size);
  rule(made, "memory for values");
  memcpy(made, reference.data[tensor], size);
  return made;
}

/* Return false if a step is not finite. */
static bool compute_values(uint32_t set) {
  bool finite = true;
  for (uint32_t step = 0; step <= STEPS; step++) {
    for (uint32_t i = 0; i < reference.stored; i++) {
      if (is_input(i) || !step) {
        reference_fill(i, reference.data[i], false);
      }
    }
    if (step) {
      finite &= reference_step(step);
      reference_commit();
    }
    for (uint32_t i = 0; i < reference.stored; i++) {
      free(values[set][step][i]);
      values[set][step][i] = copy_of(i);
    }
  }
  return finite;
}

static bool renews_a_tensor(void) {
  for (uint32_t i = reference.stored; i < reference.count; i++) {
    if (reference.current[i] != POET_NONE) {
      return true;
    }
  }
  return false;
}

/* Return false if the file has no training on a card with finite values. */
static bool open_file(const char *path) {
  if (!has_schedule(path)) {
    return false;
  }
  const uint16_t queue = schedule.plan.header.queue_max;
  host.queue = queue < 14 ? (uint16_t)(queue + 2) : queue;
  host.cache = 3;
  start_card();
  power_on();
  if (poet_format(p, 0) || schedule_upload(p, &schedule) ||
      p->model.flags & POET_MODEL_IN_RAM) {
    return false;
  }
  counts = schedule_counts(p);
  reference_load(p);
  return renews_a_tensor() && compute_values(0) && compute_values(1);
}

/* Train without faults: the second training is that of the other card. */
static void train_without_faults(void) {
  for (host.set = 0; host.set < SETS; host.set++) {
    start_card();
    power_on();
    rule(!begin(), "a training begins without faults");
    clean_begin[0] = faults_writes();
    clean_begin[1] = faults_reads();
    rule(!train() && look_twice() == EQUAL, "a training without faults");
    clean_end[0] = faults_writes();
    clean_end[1] = faults_reads();
  }
  host.set = 0;
  faults_keep_other();
}

static void prepare(void) {
  card_make(&card, CARD_BLOCKS);
  for (char **file = files; *file; file++) {
    random_state = 1;
    if (open_file(*file)) {
      rule(usable_count < MOST_FILES, "there is room for a file");
      usable[usable_count++] = *file;
    }
  }
  rule(usable_count, "a file has a training");
}

/* ---- rounds ------------------------------------------------------------- */

/* Choose where a fault happens: from the first request on, or in training. */
static void add_fault(enum fault_kind kind) {
  const bool reads = faults_at_reads(kind);
  const uint32_t begin_at = any(3) ? clean_begin[reads] : 0;
  faults_add(kind, begin_at + any(clean_end[reads] - begin_at));
}

static void play(void) {
  const uint32_t file =
      (uint32_t)(round_number / ROUNDS_OF_FILE % usable_count);
  const uint64_t state = random_state;
  if (file != opened) {
    random_state = 1;
    opened = file;
    memset(&host, 0, sizeof host);
    rule(open_file(usable[file]), "a file is as it was");
    train_without_faults();
  }
  random_state = state;
  start_card();
  if (!any(3)) {
    faults_use_other();
    seen[REUSED]++;
  }
  board.lag = any(5);
  board.renews_tables = !any(4);
  host.most = any(3) ? 4 * (1 + any(200)) : POET_BLOCK * any(4);
  host.repeats = any(4) ? 16 : 0;
  host.cache = (uint16_t)(1 + any(5));
  host.formats = !any(4);
  power_on();
  const uint32_t faults = any(3) ? 1 : 2 + any(2);
  enum fault_kind kind = FAULT_KINDS;
  for (uint32_t i = 0; i < faults; i++) {
    kind = (enum fault_kind)any(FAULT_KINDS);
    add_fault(kind);
  }
  const enum outcome outcome = run();
  const uint32_t happened = faults_happened();
  seen[HAPPENED] += happened;
  if (happened) {
    seen[(faults > 1 ? FAULT_KINDS : kind) * OUTCOMES + outcome]++;
  } else {
    seen[UNREACHED]++;
    rule(outcome == EQUAL, "a training without faults");
  }
  if (outcome == SILENT) {
    fprintf(stderr, ": silent, step %u of %s:", p->committed.now.step,
            usable[file]);
    faults_print();
  }
}
