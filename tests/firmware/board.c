#include "board.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  TABLE = 446, /* of partitions, in block 0 */
  LARGE_ARENA = 4096,
  ENTRIES = 4,
  ENTRY = 16,
  TYPE = 4,
  FIRST = 8,
  COUNT = 12,
  MOST_IDLE = 1000,
  MOST_WITHOUT_POWER = 2000 /* accesses of a call that all fail */
};

struct board board;
static uint32_t failed, idled; /* in this call: accesses without power, waits */
static uint32_t first, end;    /* the partition in the table that was read */
static struct poet_transfer *waiting, **last_waiting = &waiting;

void rule(bool kept, const char *what) {
  if (!kept) {
    fprintf(stderr, "a rule of the firmware is broken: %s\n", what);
    abort();
  }
}

/* ---- card --------------------------------------------------------------- */

static void map(struct card *card, size_t size, int flags, int file) {
  const int access = PROT_READ | PROT_WRITE;
  card->blocks = (uint32_t)(size / POET_BLOCK);
  card->good = mmap(NULL, size, access, flags, file, 0);
  card->bytes = mmap(NULL, size, access, flags, file, 0);
  card->dirty = calloc(card->blocks, 1);
  card->list = calloc(card->blocks, sizeof *card->list);
  rule(card->good != MAP_FAILED && card->bytes != MAP_FAILED && card->dirty &&
           card->list,
       "memory for a card");
}

void card_make(struct card *card, uint32_t blocks) {
  const uint32_t partition[] = {PARTITION, blocks - PARTITION};
  map(card, (size_t)blocks * POET_BLOCK, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  card->good[TABLE + TYPE] = POET_PARTITION_TYPE;
  memcpy(card->good + TABLE + FIRST, partition, sizeof partition);
  card->good[POET_BLOCK - 2] = 0x55;
  card->good[POET_BLOCK - 1] = 0xaa;
  memcpy(card->bytes, card->good, POET_BLOCK);
}

void card_open(struct card *card, const char *path) {
  const int file = open(path, O_RDONLY);
  struct stat facts;
  rule(file >= 0 && !fstat(file, &facts), "a card's image is there");
  map(card, (size_t)facts.st_size, MAP_PRIVATE, file);
  close(file);
  const struct poet_model *model =
      (const void *)(card->good + (PARTITION + POET_MODEL_BLOCK) * POET_BLOCK);
  const struct poet_plan_header *plan =
      (const void *)(card->good + (PARTITION + POET_PLAN_BLOCK) * POET_BLOCK);
  card->plan_bytes = (uint32_t)sizeof *plan + plan->bit_bytes;
  card->arena_bytes = plan->arena_bytes;
  card->model_bytes =
      (uint32_t)(sizeof *model +
                 model->tensor_count * sizeof(struct poet_tensor) +
                 (uint32_t)(model->tensor_count - model->stored_count) *
                     sizeof(struct poet_op) +
                 model->cut_count * sizeof(struct poet_cut) +
                 model->rate_count * sizeof(struct poet_rate));
  card->job = PARTITION + poet_job_block(model->data_blocks);
}

void card_touch(struct card *card, uint32_t block) {
  if (!card->dirty[block]) {
    card->dirty[block] = 1;
    card->list[card->dirty_count++] = block;
  }
}

void card_reset(struct card *card) {
  while (card->dirty_count) {
    const uint32_t block = card->list[--card->dirty_count];
    const size_t at = (size_t)block * POET_BLOCK;
    memcpy(card->bytes + at, card->good + at, POET_BLOCK);
    card->dirty[block] = 0;
  }
}

/* ---- port --------------------------------------------------------------- */

bool board_is_off(void) {
  return board.accesses >= board.off_at;
}

/* Return true if this access fails. */
static bool fails(void) {
  board.accesses++;
  if (board.accesses == board.lie_at) {
    board.lie();
  }
  if (board_is_off()) {
    rule(failed++ < MOST_WITHOUT_POWER, "a call ends without the card");
    return true;
  }
  return board.rare && !random_below(board.rare);
}

static void in_partition(uint32_t block, uint32_t count) {
  rule(block >= first && block < end && count <= end - block,
       "an access lies in the partition");
}

static void table_was_read(const uint8_t *table) {
  board.changes_seen = board.changes;
  first = end = 0;
  for (int i = ENTRIES - 1; i >= 0; i--) {
    const uint8_t *entry = table + TABLE + i * ENTRY;
    if (entry[TYPE] == POET_PARTITION_TYPE) {
      uint32_t count;
      memcpy(&first, entry + FIRST, sizeof first);
      memcpy(&count, entry + COUNT, sizeof count);
      end = count <= board.card->blocks && first <= board.card->blocks - count
                ? first + count
                : first;
    }
  }
}

static int lane_read(void *context, uint32_t block, void *data,
                     uint32_t count) {
  (void)context;
  if (block || count != 1) {
    in_partition(block, count);
  }
  if (fails()) {
    return -1;
  }
  memcpy(data, board.card->bytes + (size_t)block * POET_BLOCK,
         (size_t)count * POET_BLOCK);
  if (board.has_read) {
    board.has_read(block, data, count);
  }
  if (!block && count == 1) {
    table_was_read(data);
  }
  return 0;
}

/* A write that fails has written nothing, or a part. */
static int lane_write(void *context, uint32_t block, const void *data,
                      uint32_t count) {
  (void)context;
  rule(block && !board.reads_only, "an access does not write here");
  in_partition(block, count);
  size_t size = (size_t)count * POET_BLOCK;
  const bool was_off = board_is_off(), failing = fails();
  if (failing) {
    size = was_off ? 0 : random_below((uint32_t)size);
  }
  for (size_t done = 0; done < size; done += POET_BLOCK, block++) {
    const uint8_t *from = (const uint8_t *)data + done;
    if (!board.writes || board.writes(block, from)) {
      card_touch(board.card, block);
      memcpy(board.card->bytes + (size_t)block * POET_BLOCK, from,
             size - done < POET_BLOCK ? size - done : POET_BLOCK);
    }
  }
  return failing || board_is_off() ? -1 : 0;
}

static bool is_flash(void *context) {
  (void)context;
  return board.is_flash;
}

static int erase(void *context, uint32_t block, uint32_t count) {
  (void)context;
  in_partition(block, count);
  if (fails()) {
    return -1;
  }
  for (uint32_t i = block; i < block + count; i++) {
    card_touch(board.card, i);
    memset(board.card->bytes + (size_t)i * POET_BLOCK, 0xff, POET_BLOCK);
  }
  return 0;
}

static const struct poet_port lane;
static uint32_t ticks(void *context) {
  (void)context;
  return board.now += 7;
}

static void run_transfer(void) {
  uint8_t bounce[POET_BLOCK];
  struct poet_transfer *transfer = waiting;
  waiting = transfer->next;
  if (!waiting) {
    last_waiting = &waiting;
  }
  const struct poet_memory *memory = &board.poet->memory;
  rule(transfer->data >= memory->arena &&
           transfer->data <= memory->arena + memory->arena_bytes &&
           transfer->size_bytes <=
               (size_t)(memory->arena + memory->arena_bytes - transfer->data),
       "a transfer uses only the arena");
  rule(transfer->block >= first + POET_DATA_BLOCK,
       "a transfer lies in the data area");
  struct poet_port port = lane;
  port.lane_checks = board.poet->port->lane_checks;
  poet_transfer_run(&port, transfer, bounce);
}

/* The lane may be ahead of a synchronous access, or not. */
static void run_some(void) {
  while (waiting && random_below(4) >= board.lag) {
    run_transfer();
  }
}

static int port_read(void *context, uint32_t block, void *data,
                     uint32_t count) {
  run_some();
  return lane_read(context, block, data, count);
}

static int port_write(void *context, uint32_t block, const void *data,
                      uint32_t count) {
  run_some();
  return lane_write(context, block, data, count);
}

static int flush(void *context) {
  (void)context;
  if (fails()) {
    return -1;
  }
  if (board.has_flushed) {
    board.has_flushed();
  }
  return 0;
}

static void usage(void *context, struct poet_usage *to) {
  (void)context;
  *to = (struct poet_usage){.reading = board.now};
}

static void idle(void *context) {
  (void)context;
  if (waiting) {
    run_transfer();
  } else { /* poll may have run the transfer in the meantime */
    rule(idled++ < MOST_IDLE, "the firmware waits only for transfers");
  }
}

static uint32_t storage_blocks(void *context) {
  (void)context;
  return board.card->blocks;
}

static uint32_t allocation_mib(void *context) {
  (void)context;
  return 4;
}

static void submit(void *context, struct poet_transfer *transfer) {
  (void)context;
  *last_waiting = transfer;
  last_waiting = &transfer->next;
  run_some();
}

/* Now and then a request arrives. */
static size_t receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms) {
  (void)context;
  (void)wait_ms;
  uint8_t frame[POET_FRAME_BUFFER(16)];
  if (random_below(64)) {
    return 0;
  }
  uint32_t bytes = 2 + random_below(15);
  for (uint32_t i = 0; i < bytes; i++) {
    frame[i] = (uint8_t)random_below(random_below(4) ? 20 : 256);
  }
  const uint32_t crc = poet_crc(0, frame, bytes);
  memcpy(frame + bytes, &crc, sizeof crc);
  bytes = poet_cobs_encode(frame, bytes + (uint32_t)sizeof crc);
  rule(bytes <= size, "a short request fits");
  memcpy(data, frame, bytes);
  return bytes;
}

static void discard(void *context, const uint8_t *data, size_t size) {
  (void)context;
  (void)data;
  (void)size;
}

static const struct poet_port lane = {
    .read = lane_read, .write = lane_write, .ticks = ticks};

void board_called(void) {
  rule(!waiting, "a call ends after its transfers");
  failed = idled = 0;
}

/* ---- memory ------------------------------------------------------------- */

static void *table(size_t bytes) {
  void *made = malloc(bytes);
  rule(made || !bytes, "memory for a board");
  memset(made, 0x5a, bytes);
  return made;
}

struct poet *board_power_on(uint32_t arena, uint16_t residents,
                            uint16_t tensors, uint16_t queue, uint16_t cache,
                            uint16_t trace) {
  struct poet_rows *rows = NULL;
  if (!board.renews_tables) {
    rows = table(sizeof *rows);
    *rows = (struct poet_rows){.steps = table(16), .capacity = 64};
  }
  const struct poet_memory memory = {
      .arena = table(arena),
      .arena_bytes = arena,
      .residents = table(residents * sizeof(struct poet_resident)),
      .resident_capacity = residents,
      .bitmap = table((tensors + 31u) / 32 * 4),
      .tensor_capacity = tensors,
      .queue = table(queue * sizeof(struct poet_transfer)),
      .queue_capacity = queue,
      .cache = table(cache * sizeof(struct poet_cache)),
      .cache_blocks = cache,
      .trace = table(trace * sizeof(struct poet_trace)),
      .trace_capacity = trace,
      .rows = rows};
  struct poet_port *port = table(sizeof *port);
  *port = (struct poet_port){.board = "fuzzed",
                             .unique_id = "0123456789abcdef0",
                             .tick_hz = 1000000,
                             .ticks = ticks,
                             .usage = usage,
                             .idle = idle,
                             .storage_blocks = storage_blocks,
                             .allocation_mib = allocation_mib,
                             .read = port_read,
                             .write = port_write,
                             .flush = flush,
                             .is_flash = is_flash,
                             .erase = erase,
                             .submit = submit,
                             .lane_checks = random_below(2),
                             .receive = receive,
                             .send = discard};
  struct poet *poet = table(sizeof *poet);
  poet_init(poet, port, &memory);
  board.poet = poet;
  first = end = 0;
  return poet;
}

void board_power_off(struct poet *poet) {
  free(poet->memory.arena);
  free(poet->memory.residents);
  free(poet->memory.bitmap);
  free(poet->memory.queue);
  free(poet->memory.cache);
  free(poet->memory.trace);
  if (poet->memory.rows) {
    free(poet->memory.rows->steps);
  }
  free(poet->memory.rows);
  free((struct poet_port *)poet->port);
  free(poet);
}

struct poet_commit card_commit(struct card *card) {
  const struct board before = board;
  board =
      (struct board){.card = card, .off_at = UINT32_MAX, .reads_only = true};
  struct poet *other = board_power_on(LARGE_ARENA, 64, 64, 8, 3, 0);
  struct poet_facts facts;
  uint8_t byte;
  rule(!poet_mount(other), "a good card can be mounted");
  const struct poet_commit commit = other->committed;
  if (commit.now.step != POET_NO_STEP) {
    rule(!poet_load(other, card->model_bytes, card->plan_bytes, &facts),
         "a good card can be loaded");
    for (uint16_t i = 0; i < other->model.stored_count; i++) {
      struct poet_tensor tensor;
      rule(!poet_read_tensor(other, i, &tensor), "records can be read");
      rule(tensor.place != POET_PLACE_CURRENT ||
               !poet_read(other, POET_OBJECT_TENSOR, i, 0, &byte, 1),
           "a committed tensor is whole");
    }
  }
  board_power_off(other);
  board = before;
  return commit;
}
