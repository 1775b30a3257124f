/* The runtime on cards whose contents are changed, on a lane that may lag, with
   errors of single accesses and power that fails.

   Rules, in addition to those of board.h: after a step that is reported as
   done, the newest commit record on the card is that of the step. If nothing
   else has changed the card, another board finds the same commit, and all
   committed tensors are whole. Sanitizers see the rest.

   FILE is the image of a good card. */
#include <string.h>

#include "../board.h"
#include "change.h"

enum {
  CARDS = 8,
  ARENA = 4096,
  STEPS = 40, /* of a round */
  CALLS = 10,
  MOST_ACCESSES = 20000, /* of a round, before the power fails */
  SEEN = 15
};
#include "../fuzz.h"

enum {
  MOUNTED,
  LOADED,
  READ,
  WRITTEN,
  BEGUN,
  STEPPED,
  ALONE,
  FORMATTED,
  PROBED,
  REFUSED,
  FAILED,
  CHANGED,
  CHANGED_LOADED,
  CHANGED_STEPPED,
  COMPARED
};

static const char *const names[SEEN] = {
    "mounted",        "loaded",          "read",          "written",
    "begun",          "stepped",         "alone",         "formatted",
    "probed",         "refused",         "without-power", "changed",
    "changed-loaded", "changed-stepped", "compared"};

static struct card cards[CARDS];
static unsigned card_count;
static struct card *card;
static struct poet *p;
static uint32_t changes_loaded; /* board.changes when the schedule was loaded */
static uint32_t steps;          /* done in this round */
static uint32_t last_step; /* that the card must have; POET_NO_STEP: none */

uint32_t random_below(uint32_t end) {
  return any(end);
}

static void change(void) {
  seen[CHANGED]++;
  board.lie_at += board.lie_at < UINT32_MAX ? 1 + any(200) : 0;
  board.changes++;
  change_card();
}

static void result(unsigned counter, int error) {
  seen[error ? REFUSED : counter]++;
  rule(error <= 0 && error > -100, "an error is a row of wire.def");
}

/* ---- what is on the card ------------------------------------------------ */

static bool is_newest(const struct poet_commit *commit) {
  const struct poet_commit *newest = NULL;
  for (uint32_t i = 0; i < 2; i++) {
    const struct poet_commit *record =
        (const void *)(card->bytes + (size_t)(p->partition + POET_COMMIT_BLOCK +
                                              i * POET_UNIT_BLOCKS) *
                                         POET_BLOCK);
    if (record->magic == POET_COMMIT_MAGIC &&
        record->crc == poet_crc(0, record, offsetof(struct poet_commit, crc)) &&
        record->slot <= POET_SLOTS &&
        (!newest || record->sequence > newest->sequence)) {
      newest = record;
    }
  }
  return newest && !memcmp(newest, commit, sizeof *commit);
}

static void compare(void) {
  seen[COMPARED]++;
  const struct poet_commit found = card_commit(card);
  rule(!memcmp(&found, &p->committed, sizeof found),
       "another board finds the same commit");
}

/* ---- calls -------------------------------------------------------------- */

static int poll(void *context) {
  (void)context;
  uint8_t data[64] = {0};
  switch (any(200)) {
  case 0:
    return 1; /* stop */
  case 1:
    poet_ignore(poet_write(p, POET_OBJECT_TENSOR, (uint16_t)any(5), any(700),
                           data, any(sizeof data)));
    break;
  case 2:
    poet_ignore(poet_write(p, POET_OBJECT_TENSOR, 1, 0, data, 24));
    break;
  case 3:
    rule(poet_write(p, POET_OBJECT_MODEL, 0, 0, data, 1) == POET_ERROR_busy,
         "a running step keeps its schedule");
    break;
  default:
    break;
  }
  return 0;
}

static void load(void) {
  struct poet_facts facts;
  changes_loaded = board.changes;
  const int error = poet_load(p, card->model_bytes, card->plan_bytes, &facts);
  result(LOADED, error);
  seen[CHANGED_LOADED] += !error && board.changes;
}

static void read(void) {
  uint8_t *data = malloc(1024); /* a sanitizer sees its end */
  uint32_t crc;
  const uint8_t object =
      any(3) ? POET_OBJECT_TENSOR : (uint8_t)any(POET_OBJECT_PARTITION + 2);
  const uint32_t size = any(4) ? any(40) : any(1025);
  if (any(3)) {
    result(READ, poet_read(p, object, (uint16_t)any(5), any(3) ? any(900) : 0,
                           data, size));
  } else {
    result(READ, poet_checksum(p, object, (uint16_t)any(5),
                               any(8) ? size : any(1u << 30), &crc));
  }
  free(data);
}

static void write_tensor(void) {
  const uint16_t number = (uint16_t)any(4);
  struct poet_tensor tensor = {0};
  const uint32_t size = p->loaded && !poet_read_tensor(p, number, &tensor) &&
                                tensor.size_bytes < 1000
                            ? tensor.size_bytes
                            : 900;
  uint8_t *data = malloc(size);
  for (uint32_t i = 0; i + 4 <= size; i += 4) {
    const float value = ((float)any(200) - 100.0f) / 300.0f;
    memcpy(data + i, &value, sizeof value);
  }
  int error = 0;
  for (uint32_t offset = 0, part; offset < size && !error; offset += part) {
    part = any(3) ? size - offset : 1 + any(size - offset);
    error =
        poet_write(p, POET_OBJECT_TENSOR, number, offset, data + offset, part);
  }
  result(WRITTEN, error);
  free(data);
}

/* Any bytes anywhere. */
static void write(void) {
  uint8_t *data = malloc(600);
  for (uint32_t i = 0; i < 600; i++) {
    data[i] = (uint8_t)any(256);
  }
  const uint8_t object = (uint8_t)any(POET_OBJECT_PARTITION + 2);
  if (object <= POET_OBJECT_PLAN || object == POET_OBJECT_PARTITION) {
    board.changes++;
  }
  result(WRITTEN,
         poet_write(p, object, (uint16_t)any(5),
                    any(2) ? any(1000) : any(1u << any(32)), data, any(601)));
  free(data);
}

/* After steps that were reported as done. Tensors are checked if they are of a
   commit after `before`, or if nothing has changed the card. A changed record
   may name a generation that is still to come. */
static void check_step(uint32_t changes_before,
                       const struct poet_commit *before) {
  /* A job may have gone on to a commit that failed, or nearly. */
  if (board.changes != changes_before || board.changes != board.changes_seen ||
      p->storage_status) {
    return;
  }
  rule(is_newest(&p->committed), "a step that is done is on the card");
  last_step = p->committed.now.step;
  const uint32_t sequence = p->committed.sequence;
  const bool renewed = sequence > before->sequence &&
                       p->committed.now.generation == sequence &&
                       before->now.generation <= before->sequence;
  if (board.changes == changes_loaded && (renewed || !board.changes) &&
      !any(4)) {
    compare();
  }
}

static bool is_mounted(void) {
  struct poet_hello hello;
  poet_describe(p, &hello);
  return !hello.storage_status;
}

static void begin(void) {
  const bool mounted = is_mounted();
  const uint32_t before = board.changes;
  const struct poet_commit commit = p->committed;
  const int error = poet_begin(p, any(8) ? any(100) : POET_NO_STEP - any(2));
  result(BEGUN, error);
  if (!error && mounted) {
    check_step(before, &commit);
  }
}

static void step(void) {
  struct poet_step_result facts;
  p->poll = any(2) ? poll : NULL;
  for (uint32_t count = 1 + any(4); count && steps < STEPS; count--) {
    const uint32_t before = board.changes;
    const struct poet_commit commit = p->committed;
    const uint32_t number = poet_last_step(p) + (any(16) ? 1 : any(3));
    const bool renews = number != poet_last_step(p);
    const int error =
        poet_step(p, number, (uint16_t)any(40), (uint16_t)any(80), &facts);
    board_called();
    result(STEPPED, error);
    if (!error) {
      rule(poet_last_step(p) == number, "the step is the last one");
      rule(facts.peak_bytes <= p->memory.arena_bytes, "the peak is in memory");
    }
    if (!error && renews) {
      steps++;
      seen[CHANGED_STEPPED] += board.changes != 0;
      check_step(before, &commit);
    }
  }
  p->poll = NULL;
}

static void train_alone(void) {
  uint8_t *frame = malloc(POET_FRAME_BUFFER(64));
  struct poet_server server = {.poet = p, .frame = frame, .frame_bytes = 64};
  const bool mounted = is_mounted();
  const uint32_t before = board.changes;
  const struct poet_commit commit = p->committed;
  changes_loaded = board.changes;
  poet_ignore(poet_serve_alone(&server));
  p->poll = NULL;
  if (mounted && server.step && p->committed.now.step == server.step &&
      p->committed.now.generation > commit.sequence) {
    seen[ALONE]++;
    seen[CHANGED_STEPPED] += board.changes != 0;
    check_step(before, &commit);
  } else {
    seen[REFUSED]++;
  }
  free(frame);
}

static void format(void) {
  last_step = POET_NO_STEP;
  result(FORMATTED, poet_format(p, any(2) ? 0 : any(100000)));
}

static void probe(void) {
  uint32_t ticks, cpu_ticks;
  if (any(2)) {
    result(PROBED, poet_probe_commit(p, (uint16_t)any(9), &ticks));
  } else {
    result(PROBED, poet_probe_transfer(p, any(2), any(2) ? any(5000) : any(600),
                                       (uint16_t)any(9), &ticks, &cpu_ticks));
  }
}

static void mount(void) {
  struct poet_hello hello;
  if (any(2)) {
    poet_ignore(poet_mount(p));
  }
  poet_describe(p, &hello);
  result(MOUNTED, hello.storage_status);
}

static void call(void) {
  const uint32_t kind = any(32);
  if (kind < 2) {
    mount();
  } else if (kind < 7) {
    load();
  } else if (kind < 11) {
    read();
  } else if (kind < 14) {
    write_tensor();
  } else if (kind < 15) {
    write();
  } else if (kind < 17) {
    begin();
  } else if (kind < 25) {
    step();
  } else if (kind < 28) {
    train_alone();
  } else if (kind < 29) {
    any(4) ? probe() : format();
  } else if (kind < 30) {
    probe();
  } else if (board.changes) { /* else the card stays as it was written */
    change();
  }
  board_called();
}

/* ---- rounds ------------------------------------------------------------- */

static void power_on(void) {
  static const uint32_t arenas[] = {ARENA, 3000, 9000};
  const bool small = !any(4);
  /* In an arena of the plan's size, each range that is too long is seen. */
  p = board_power_on(
      any(2) ? card->arena_bytes : arenas[any(3)],
      (uint16_t)(small ? any(10) : 64), (uint16_t)(small ? 8 + any(40) : 64),
      (uint16_t)(1 + any(8)), (uint16_t)(1 + any(4)), (uint16_t)any(64));
}

static void play(void) {
  const unsigned number = any(card_count);
  card = &cards[number];
  card_reset(card);
  change_start(number);
  steps = 0;
  board = (struct board){.card = card,
                         .off_at = any(3) ? MOST_ACCESSES : any(1000),
                         .rare = any(3) ? 0 : 20u << any(8),
                         .lie_at = UINT32_MAX,
                         .lie = change,
                         .lag = 2};
  const uint32_t changes = any(4); /* bits: before the power is on, later */
  if (changes & 1) {
    change();
  }
  if (changes & 2) {
    board.lie_at = 1 + any(400);
  }
  power_on();
  last_step = board.changes ? POET_NO_STEP : 0;
  if (any(4)) {
    load();
  }
  for (uint32_t count = 1 + any(CALLS); count; count--) {
    call();
    if (board_is_off()) {
      seen[FAILED]++;
      board_power_off(p);
      board.accesses = 0;
      board.off_at = MOST_ACCESSES;
      board.lie_at = UINT32_MAX;
      power_on();
    }
  }
  board_power_off(p);
  if (!board.changes && last_step != POET_NO_STEP) {
    rule(card_commit(card).now.step != POET_NO_STEP,
         "a card keeps its last step");
  }
}

static void prepare_card(const char *path) {
  rule(card_count < CARDS, "there is room for a card");
  card = &cards[card_count];
  card_open(card, path);
  board =
      (struct board){.card = card, .off_at = UINT32_MAX, .reads_only = true};
  struct poet_facts facts;
  p = board_power_on(ARENA, 64, 64, 8, 3, 0);
  rule(!poet_load(p, card->model_bytes, card->plan_bytes, &facts),
       "a good card can be loaded");
  change_prepare(card, p, card_count++);
  board_power_off(p);
}

static void prepare(void) {
  random_state = 1;
  for (char **path = files; *path; path++) {
    prepare_card(*path);
  }
}
