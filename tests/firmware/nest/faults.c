#include "faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strange.h"

enum {
  MOST_FAULTS = 8,
  MOST_UNFLUSHED = 4096,
  DRAWS = 200,
  WRONG_READS = 8, /* of the schedule, if several */
  RARE = 25        /* of these reads, one is wrong */
};

static const char *const names[FAULT_KINDS] = {
#define FAULT(name, text) text,
    FAULT_LIST(FAULT)
#undef FAULT
};

struct fault {
  enum fault_kind kind;
  uint32_t at;
  bool happened;
  uint32_t block;
};

typedef uint8_t block_bytes[POET_BLOCK];

static struct card *card;
static struct fault list[MOST_FAULTS];
static uint32_t count, writes, reads;
static uint32_t dropping;    /* writes that are still to be dropped */
static uint32_t wrong_reads; /* of the schedule, that are still to come */
static uint32_t unflushed[MOST_UNFLUSHED], unflushed_count;
/* The two contents before, and that of the other card, of every block. */
static block_bytes *before, *earlier, *other;
static uint32_t *other_blocks,
    other_count; /* that the other card has written */

static uint8_t *bytes_of(uint32_t block) {
  return card->bytes + (size_t)block * POET_BLOCK;
}

/* ---- faults of a write -------------------------------------------------- */

static uint32_t written_block(uint32_t from, uint32_t to) {
  for (int i = 0; i < DRAWS && card->dirty_count; i++) {
    const uint32_t block = card->list[random_below(card->dirty_count)];
    if (block >= PARTITION + from && block < PARTITION + to) {
      return block;
    }
  }
  return PARTITION + from;
}

static uint32_t any_block(void) {
  return written_block(0, card->blocks);
}

static void change_bit(uint8_t *bytes, uint32_t size) {
  bytes[random_below(size)] ^= (uint8_t)(1u << random_below(8));
}

static void change_word(uint8_t *block) {
  uint32_t word;
  block += 4 * random_below(POET_BLOCK / 4);
  memcpy(&word, block, sizeof word);
  word = strange(word);
  memcpy(block, &word, sizeof word);
}

static void swap(uint32_t a, uint32_t b) {
  block_bytes keep;
  memcpy(keep, bytes_of(a), POET_BLOCK);
  memcpy(bytes_of(a), bytes_of(b), POET_BLOCK);
  memcpy(bytes_of(b), keep, POET_BLOCK);
}

static void misdirect(uint32_t block, const uint8_t *data) {
  const uint32_t to =
      random_below(2) ? block + 1 + random_below(3) : any_block();
  if (to < card->blocks) {
    card_touch(card, to);
    memcpy(bytes_of(to), data, POET_BLOCK);
  }
}

static void cut(void) {
  board.off_at = board.accesses;
}

/* Damage what is on the card, whatever is written now. */
static void damage(struct fault *fault) {
  const bool is_schedule = fault->kind == FAULT_SCHEDULE;
  const uint32_t block =
      is_schedule ? written_block(POET_MODEL_BLOCK, POET_COMMIT_BLOCK)
                  : any_block();
  uint8_t *bytes = bytes_of(block);
  fault->block = block;
  if (fault->kind == FAULT_BIT_LATER) {
    change_bit(bytes, POET_BLOCK);
  } else if (fault->kind == FAULT_OLD) {
    memcpy(bytes, random_below(2) ? before[block] : earlier[block], POET_BLOCK);
  } else if (fault->kind == FAULT_SWAPPED) {
    swap(block, any_block());
  } else if (fault->kind == FAULT_OTHER_CARD) {
    memcpy(bytes, other[block], POET_BLOCK);
  } else {
    change_word(bytes);
  }
}

/* Return false if the card does not write the block as it should. */
static bool keeps(struct fault *fault, uint32_t block, const uint8_t *data) {
  uint8_t *bytes = bytes_of(block);
  fault->happened = true;
  fault->block = block;
  switch (fault->kind) {
  case FAULT_DROPPED:
    return false;
  case FAULT_MISDIRECTED:
    misdirect(block, data);
    return false;
  case FAULT_TORN:
    card_touch(card, block);
    memcpy(bytes, data, random_below(POET_BLOCK));
    return false;
  case FAULT_BIT_WRITTEN:
    card_touch(card, block);
    memcpy(bytes, data, POET_BLOCK);
    change_bit(bytes, POET_BLOCK);
    return false;
  case FAULT_CUT:
    cut();
    return false;
  case FAULT_SEVERAL:
    dropping = 2 + random_below(6);
    return true; /* it is one of those */
  case FAULT_CUT_LATER:
    dropping = 1 + random_below(2);
    faults_add(FAULT_CUT, writes + random_below(12));
    return true;
  default:
    damage(fault);
    return true;
  }
}

static bool has_schedule(void) {
  return board.poet && board.poet->loaded;
}

static bool on_write(uint32_t block, const uint8_t *data) {
  const uint32_t number = writes++;
  bool kept = true;
  if (board_is_off()) {
    return false;
  }
  for (uint32_t i = 0; i < count; i++) {
    struct fault *fault = &list[i];
    if (!fault->happened && !faults_at_reads(fault->kind) &&
        number >= fault->at &&
        (fault->kind != FAULT_SCHEDULE || has_schedule())) {
      kept &= keeps(fault, block, data);
    }
  }
  if (dropping) {
    dropping--;
    return false;
  }
  if (kept) {
    memcpy(earlier[block], before[block], POET_BLOCK);
    memcpy(before[block], bytes_of(block), POET_BLOCK);
    if (unflushed_count < MOST_UNFLUSHED) {
      unflushed[unflushed_count++] = block;
    }
  }
  return kept;
}

/* ---- faults of a read --------------------------------------------------- */

static bool is_schedule(uint32_t block) {
  return block >= PARTITION + POET_MODEL_BLOCK &&
         block < PARTITION + POET_COMMIT_BLOCK;
}

static void on_read(uint32_t block, uint8_t *data, uint32_t blocks) {
  reads += blocks;
  for (uint32_t i = 0; i < count; i++) {
    struct fault *fault = &list[i];
    if (fault->happened || !faults_at_reads(fault->kind) || reads < fault->at ||
        (fault->kind == FAULT_SCHEDULE_READ &&
         !(is_schedule(block) && has_schedule()))) {
      continue;
    }
    fault->happened = true;
    fault->block = block;
    if (fault->kind == FAULT_BIT_READ) {
      change_bit(data, blocks * POET_BLOCK);
    } else {
      wrong_reads = random_below(2) ? 1 : WRONG_READS;
      change_word(data);
    }
  }
  if (wrong_reads && is_schedule(block) && has_schedule() &&
      !random_below(RARE)) {
    wrong_reads--;
    change_word(data);
  }
}

static void on_flush(void) {
  unflushed_count = 0;
}

/* ---- the card ----------------------------------------------------------- */

static block_bytes *all_blocks(void) {
  block_bytes *made = calloc(card->blocks, sizeof *made);
  rule(made, "memory for the history of a card");
  return made;
}

void faults_start(struct card *of) {
  card = of;
  if (!before) {
    before = all_blocks();
    earlier = all_blocks();
    other = all_blocks();
    other_blocks = calloc(card->blocks, sizeof *other_blocks);
    rule(other_blocks, "memory for the other card");
  }
  for (uint32_t i = 0; i < card->dirty_count; i++) {
    memset(before[card->list[i]], 0, POET_BLOCK);
    memset(earlier[card->list[i]], 0, POET_BLOCK);
  }
  card_reset(card);
  count = writes = reads = dropping = wrong_reads = unflushed_count = 0;
  board.writes = on_write;
  board.has_read = on_read;
  board.has_flushed = on_flush;
}

void faults_add(enum fault_kind kind, uint32_t at) {
  rule(count < MOST_FAULTS, "there is room for a fault");
  list[count++] = (struct fault){.kind = kind, .at = at};
}

bool faults_at_reads(enum fault_kind kind) {
  return kind == FAULT_BIT_READ || kind == FAULT_SCHEDULE_READ;
}

uint32_t faults_writes(void) {
  return writes;
}

uint32_t faults_reads(void) {
  return reads;
}

uint32_t faults_happened(void) {
  uint32_t happened = 0;
  for (uint32_t i = 0; i < count; i++) {
    happened += list[i].happened;
  }
  return happened;
}

bool faults_only_cut(void) {
  uint32_t cuts = 0;
  for (uint32_t i = 0; i < count; i++) {
    cuts += list[i].kind == FAULT_CUT;
  }
  return cuts == count;
}

void faults_print(void) {
  for (uint32_t i = 0; i < count; i++) {
    fprintf(stderr, " [%s at %u%s, block %u]", names[list[i].kind], list[i].at,
            list[i].happened ? "" : ", not reached", list[i].block);
  }
  fprintf(stderr, "\n");
}

void faults_power_on(void) {
  for (uint32_t i = unflushed_count; board_is_off() && i; i--) {
    if (!random_below(3)) {
      const uint32_t block = unflushed[i - 1];
      memcpy(bytes_of(block), before[block], POET_BLOCK);
    }
  }
  unflushed_count = 0;
  board.off_at = UINT32_MAX;
}

void faults_keep_other(void) {
  while (other_count) {
    memset(other[other_blocks[--other_count]], 0, POET_BLOCK);
  }
  for (uint32_t i = 0; i < card->dirty_count; i++) {
    const uint32_t block = card->list[i];
    memcpy(other[block], bytes_of(block), POET_BLOCK);
    other_blocks[other_count++] = block;
  }
}

void faults_use_other(void) {
  for (uint32_t i = 0; i < other_count; i++) {
    card_touch(card, other_blocks[i]);
    memcpy(bytes_of(other_blocks[i]), other[other_blocks[i]], POET_BLOCK);
  }
}
