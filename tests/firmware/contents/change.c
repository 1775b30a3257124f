#include "change.h"

#include <string.h>

enum {
  TABLE = 446,
  CARDS = 8,
  MOST_SEALS = 128,
  AREAS = 16,
  SAMPLES = 5,       /* of a job */
  MOST_ORDER = 16384 /* bytes of a job's order whose CRC is renewed */
};

/* The trailer of a piece in a slot. */
struct seal {
  uint32_t data;    /* first byte of the piece on the card */
  uint32_t trailer; /* first byte of its trailer on the card */
  uint32_t size;    /* bytes of the piece */
  uint32_t block;   /* of the piece in the data area, in slot 0 */
  uint8_t slot;
  bool current; /* of a CURRENT tensor; else of an INPUT tensor */
};

struct area {
  uint32_t at, size; /* bytes of the card */
};

static struct plan_of_card {
  struct card *card;
  struct seal seals[MOST_SEALS];
  struct area areas[AREAS];
  unsigned seal_count, area_count;
  unsigned part_areas; /* the first areas: those of the schedule's parts */
  uint32_t model_crc;  /* of the good card */
} cards[CARDS], *it;

static uint32_t in_partition(uint32_t block) {
  return (PARTITION + block) * POET_BLOCK;
}

static void *at(uint32_t byte) {
  return it->card->bytes + byte;
}

static void touch(uint32_t byte, uint32_t size) {
  for (uint32_t i = byte / POET_BLOCK; i <= (byte + size - 1) / POET_BLOCK;
       i++) {
    card_touch(it->card, i);
  }
}

/* ---- what a card has ---------------------------------------------------- */

static void add_area(uint32_t byte, uint32_t size) {
  rule(it->area_count < AREAS, "there is room for an area");
  if (size) {
    it->areas[it->area_count++] = (struct area){byte, size};
  }
}

static void add_slot(struct poet *p, const struct poet_tensor *tensor,
                     uint8_t slot) {
  const uint32_t block =
      POET_DATA_BLOCK + tensor->block + slot * p->model.slot_stride;
  struct poet_pieces pieces;
  struct poet_piece piece;
  rule(!poet_read_pieces(p, tensor, &pieces), "a good card has pieces");
  for (uint32_t i = 0; i < pieces.count; i++) {
    poet_piece_in_slot(&pieces, i, &piece);
    rule(it->seal_count < MOST_SEALS, "there is room for a trailer");
    it->seals[it->seal_count++] = (struct seal){
        in_partition(block + piece.block) + piece.at,
        in_partition(block + piece.trailer_block) + piece.trailer_offset,
        piece.size_bytes,
        tensor->block + piece.block,
        slot,
        tensor->place == POET_PLACE_CURRENT};
  }
}

void change_prepare(struct card *card, struct poet *loaded, unsigned number) {
  const struct poet_model *model = &loaded->model;
  const uint32_t part = in_partition(POET_MODEL_BLOCK);
  const uint32_t ops =
      (uint32_t)(sizeof *model +
                 model->tensor_count * sizeof(struct poet_tensor));
  const uint32_t cuts =
      ops + (uint32_t)((uint32_t)(model->tensor_count - model->stored_count) *
                       sizeof(struct poet_op));
  struct poet_job job;
  rule(number < CARDS, "there is room for a card");
  it = &cards[number];
  it->card = card;
  it->model_crc = model->crc;
  memcpy(&job, at(card->job * POET_BLOCK), sizeof job);
  add_area(part, sizeof *model);
  add_area(part + (uint32_t)sizeof *model, ops - (uint32_t)sizeof *model);
  add_area(part + ops, cuts - ops);
  add_area(part + cuts, card->model_bytes - cuts);
  add_area(in_partition(POET_PLAN_BLOCK), sizeof(struct poet_plan_header));
  add_area(in_partition(POET_PLAN_BLOCK) +
               (uint32_t)sizeof(struct poet_plan_header),
           card->plan_bytes - (uint32_t)sizeof(struct poet_plan_header));
  it->part_areas = it->area_count;
  add_area(TABLE, POET_BLOCK - TABLE);
  add_area(in_partition(0), sizeof(struct poet_store));
  for (uint32_t i = 0; i < 2; i++) {
    add_area(in_partition(POET_COMMIT_BLOCK + i * POET_UNIT_BLOCKS),
             sizeof(struct poet_commit));
  }
  add_area(card->job * POET_BLOCK, sizeof job);
  add_area((card->job + 1) * POET_BLOCK, 4 * job.steps * job.batch);
  add_area((card->job + job.sample_block) * POET_BLOCK,
           SAMPLES * (job.data_bytes + job.label_bytes + 4));
  add_area((card->job + job.loss_block) * POET_BLOCK,
           sizeof(struct poet_job_log) + 4 * job.steps);
  for (uint32_t i = 0; i < model->stored_count; i++) {
    struct poet_tensor tensor;
    rule(!poet_read_tensor(loaded, i, &tensor), "a good card has tensors");
    const bool current = tensor.place == POET_PLACE_CURRENT;
    rule(current || tensor.place == POET_PLACE_INPUT, "no tensor is FIXED");
    const uint32_t slots = current ? poet_slots(model) : 2;
    for (uint32_t slot = 0; slot < slots; slot++) {
      add_slot(loaded, &tensor, (uint8_t)slot);
    }
  }
}

void change_start(unsigned number) {
  it = &cards[number];
}

/* ---- changes ------------------------------------------------------------ */

/* A number of `width` bytes that code may not expect. */
static uint32_t strange(uint32_t old, uint32_t width) {
  static const uint32_t numbers[] = {
      0,          1,          2,       3,          4,          8,
      16,         511,        512,     513,        0x7f,       0xff,
      0x7fff,     0xffff,     0x10000, 0x7fffffff, 0x80000000, 0xfffffffe,
      0xffffffff, 0x01010101, 8192,    16384};
  switch (random_below(4)) {
  case 0:
    return numbers[random_below(sizeof numbers / sizeof *numbers)];
  case 1:
    return old + random_below(9) - 4;
  case 2:
    return old ^ 1u << random_below(8 * width);
  default:
    return random_below(1u << random_below(32)) << random_below(4);
  }
}

static void change_field(uint32_t byte, uint32_t size, uint32_t width) {
  uint32_t offset = random_below(size);
  offset -= offset % width;
  width = width < size - offset ? width : size - offset;
  uint32_t value = 0;
  memcpy(&value, at(byte + offset), width);
  value = strange(value, width);
  memcpy(at(byte + offset), &value, width);
  touch(byte + offset, width);
}

/* Blocks that a card has mixed up: a piece with the bytes of another one. */
static void mix_up(void) {
  const struct seal *to = &it->seals[random_below(it->seal_count)];
  const struct seal *from = &it->seals[random_below(it->seal_count)];
  const uint32_t to_block = to->data / POET_BLOCK;
  const uint32_t from_block = from->data / POET_BLOCK;
  memmove(at(to_block * POET_BLOCK), at(from_block * POET_BLOCK), POET_BLOCK);
  card_touch(it->card, to_block);
}

static void change_one(void) {
  static const uint32_t widths[] = {1, 2, 4, 4};
  const uint32_t width = widths[random_below(4)];
  const uint32_t kind = random_below(24);
  if (kind < 18) {
    const struct area *area = &it->areas[random_below(
        random_below(2) ? it->part_areas : it->area_count)];
    change_field(area->at, area->size, width);
  } else if (kind < 20) {
    const struct seal *seal = &it->seals[random_below(it->seal_count)];
    change_field(seal->data, seal->size, width);
  } else if (kind < 22) {
    const struct seal *seal = &it->seals[random_below(it->seal_count)];
    change_field(seal->trailer, POET_TRAILER, width);
  } else if (kind < 23) {
    mix_up();
  } else {
    change_field(0, it->card->blocks * POET_BLOCK, width);
  }
}

/* ---- checksums ---------------------------------------------------------- */

enum { STORE, COMMITS, MODEL, PLAN, COPIES, SEALS, DIGEST, ORDER, JOB, KINDS };

static struct poet_commit *commit_record(uint32_t i) {
  return at(in_partition(POET_COMMIT_BLOCK + i * POET_UNIT_BLOCKS));
}

static void renew_model(void) {
  struct poet_model *model = at(in_partition(POET_MODEL_BLOCK));
  struct poet_plan_header *plan = at(in_partition(POET_PLAN_BLOCK));
  const uint32_t before = model->crc;
  model->crc = poet_crc(0, &model->version, it->card->model_bytes - 8);
  touch(in_partition(POET_MODEL_BLOCK), sizeof *model);
  if (plan->model_crc == before || plan->model_crc == it->model_crc) {
    plan->model_crc = model->crc;
    touch(in_partition(POET_PLAN_BLOCK), sizeof *plan);
  }
  for (uint32_t i = 0; i < 2; i++) {
    struct poet_commit *commit = commit_record(i);
    if (commit->model_crc == before || commit->model_crc == it->model_crc) {
      commit->model_crc = model->crc;
      touch(in_partition(POET_COMMIT_BLOCK + i * POET_UNIT_BLOCKS),
            sizeof *commit);
    }
  }
}

static int read_blocks(void *context, uint32_t block, void *data,
                       uint32_t count) {
  (void)context;
  memcpy(data, at(block * POET_BLOCK), count * POET_BLOCK);
  return 0;
}

static int write_blocks(void *context, uint32_t block, const void *data,
                        uint32_t count) {
  (void)context;
  memcpy(at(block * POET_BLOCK), data, count * POET_BLOCK);
  touch(block * POET_BLOCK, count * POET_BLOCK);
  return 0;
}

/* Copy the parts as the board's load did: with checks of the CRCs that it has
   loaded. The parts' own CRCs may differ from these by now. */
static void renew_copies(const struct poet *loaded) {
  static const struct poet_port port = {.read = read_blocks,
                                        .write = write_blocks};
  struct poet_cache cache[2];
  const struct poet_memory memory = {.cache = cache, .cache_blocks = 2};
  struct poet copier;
  poet_init(&copier, &port, &memory);
  copier.partition = PARTITION;
  copier.model.crc = loaded->model.crc;
  copier.plan.crc = loaded->plan.crc;
  for (uint32_t i = 0; i < 2;
       i++) { /* the board's copies have the next number */
    const uint32_t before = loaded->copies[i] - 1;
    memcpy(at(in_partition(POET_COPY_BLOCK + (i + 1) * 2048 - 1)), &before,
           sizeof before);
  }
  poet_ignore(poet_copy_part(&copier, POET_MODEL_BLOCK, it->card->model_bytes,
                             at(in_partition(POET_MODEL_BLOCK)),
                             sizeof(struct poet_model)));
  poet_ignore(poet_copy_part(&copier, POET_PLAN_BLOCK, it->card->plan_bytes,
                             at(in_partition(POET_PLAN_BLOCK)),
                             sizeof(struct poet_plan_header)));
}

static const struct poet_commit *newest_commit(void) {
  const struct poet_commit *records[] = {commit_record(0), commit_record(1)};
  return records[records[1]->sequence > records[0]->sequence];
}

/* The next step reads pieces of the newest commit: these also get its owner. */
static void renew_seals(void) {
  const struct poet_store *store = at(in_partition(0));
  const struct poet_commit *commit = newest_commit();
  const uint32_t generation = poet_crc(store->identity, &commit->now.generation,
                                       sizeof commit->now.generation);
  for (uint32_t i = 0; i < it->seal_count; i++) {
    const struct seal *seal = &it->seals[i];
    uint32_t trailer[2];
    memcpy(trailer, at(seal->trailer), sizeof trailer);
    trailer[0] = poet_crc(0, at(seal->data), seal->size);
    if (seal->slot == (seal->current ? commit->slot : commit->now.step & 1)) {
      trailer[1] = seal->block ^ generation;
    }
    if (memcmp(trailer, at(seal->trailer), sizeof trailer)) {
      memcpy(at(seal->trailer), trailer, sizeof trailer);
      touch(seal->trailer, sizeof trailer);
    }
  }
}

static uint32_t digest(uint32_t slot) {
  uint32_t value = 0;
  for (uint32_t i = 0; i < it->seal_count; i++) {
    const struct seal *seal = &it->seals[i];
    if (seal->current && seal->slot == slot) {
      value ^= poet_crc(0, at(seal->trailer), POET_TRAILER);
    }
  }
  return value;
}

static void renew_commit(uint32_t i, bool digests) {
  struct poet_commit *commit = commit_record(i);
  if (commit->magic != POET_COMMIT_MAGIC) {
    return;
  }
  if (digests) {
    commit->now.digest = digest(commit->slot);
    commit->prior.digest =
        commit->prior.generation ? digest(commit->prior_slot) : 0;
  }
  commit->crc = poet_crc(0, commit, offsetof(struct poet_commit, crc));
  touch(in_partition(POET_COMMIT_BLOCK + i * POET_UNIT_BLOCKS), sizeof *commit);
}

static void renew(uint32_t kinds) {
  struct poet_store *store = at(in_partition(0));
  struct poet_plan_header *plan = at(in_partition(POET_PLAN_BLOCK));
  struct poet_job *job = at(it->card->job * POET_BLOCK);
  if (kinds & 1u << STORE) {
    store->crc = poet_crc(0, store, offsetof(struct poet_store, crc));
    touch(in_partition(0), sizeof *store);
  }
  if (kinds & 1u << MODEL) {
    renew_model();
  }
  if (kinds & 1u << SEALS) {
    renew_seals();
  }
  if (kinds & 1u << PLAN) {
    plan->crc = poet_crc(0, &plan->model_crc, it->card->plan_bytes - 8);
    touch(in_partition(POET_PLAN_BLOCK), sizeof *plan);
  }
  if (kinds & 1u << COPIES && board.poet) {
    renew_copies(board.poet);
  }
  for (uint32_t i = 0; i < 2 && kinds & 1u << COMMITS; i++) {
    renew_commit(i, kinds & 1u << DIGEST);
  }
  const uint32_t order = 4 * job->steps * job->batch;
  if (kinds & 1u << ORDER && order <= MOST_ORDER) {
    job->order_crc = poet_crc(0, at((it->card->job + 1) * POET_BLOCK), order);
  }
  if (kinds & 1u << JOB) {
    job->crc = poet_crc(0, job, offsetof(struct poet_job, crc));
  }
  touch(it->card->job * POET_BLOCK, sizeof *job);
}

void change_card(void) {
  const uint32_t all = (1u << KINDS) - 1;
  for (uint32_t count = 1 + random_below(3); count; count--) {
    change_one();
  }
  switch (random_below(8)) {
  case 0:
    break;
  case 1:
    renew(random_below(all + 1));
    break;
  default:
    renew(all);
  }
}
