/*
 * samples.c - samples that a device keeps: of each class the newest ones, raw.
 *
 * Sample n of a class lies in place n mod `places` of the class. On storage, a
 * place is whole erase units, and a class has one place more than slots. So the
 * sample that a new one replaces stays until the next one is written, and a cut
 * write damages no sample that is still in use.
 *
 *   record | record | places of class 0 | places of class 1 ...
 *
 * Step s chooses from the newest `slots` samples of each class that it may
 * draw. Which these are depends only on the first step that may draw each
 * sample. So a step that is repeated after a power cut chooses the same,
 * although there are newer samples. The classes take turns; within a class a
 * hash of seed, step and number in the batch chooses.
 *
 * The two records are written in turn. The newer one has the epoch of the
 * samples that are in use: a new epoch forgets all of them at once.
 *
 * State: `from` and `next` of struct poet_samples, which poet_samples_open
 * finds in the headers of the samples.
 */
#include "samples.h"

#include <string.h>

#if POET_LIBRARY

static uint32_t units(uint32_t blocks, uint32_t erase_blocks) {
  return poet_divided_up(blocks, erase_blocks) * erase_blocks;
}

static uint32_t blocks_of_place(uint32_t sample_bytes, uint32_t erase_blocks) {
  return units(
      poet_divided_up((uint32_t)sizeof(struct poet_sample) + sample_bytes,
                      POET_BLOCK),
      erase_blocks);
}

uint32_t poet_samples_places(uint32_t slots, bool on_storage) {
  return slots + on_storage;
}

uint32_t poet_samples_blocks(uint32_t classes, uint32_t slots,
                             uint32_t sample_bytes, uint32_t erase_blocks) {
  return 2 * erase_blocks + classes * poet_samples_places(slots, true) *
                                blocks_of_place(sample_bytes, erase_blocks);
}

/* Return what the record states: size and type. */
static uint32_t kind(const struct poet_samples *s) {
  return s->sample_bytes | (uint32_t)s->is_unsigned << 31;
}

static uint32_t record_block(const struct poet_samples *s, uint32_t sequence) {
  return POET_OWN_BLOCK + (sequence & 1) * s->erase_blocks;
}

static uint32_t place_block(const struct poet_samples *s, uint32_t place) {
  return POET_OWN_BLOCK + 2 * s->erase_blocks + place * s->place_blocks;
}

static uint32_t place_of(const struct poet_samples *s, uint32_t label,
                         uint32_t number) {
  return label * s->places + number % s->places;
}

static uint32_t crc_of_header(const struct poet_samples *s,
                              const struct poet_sample *header) {
  return poet_crc(s->start, header, offsetof(struct poet_sample, crc));
}

static uint32_t crc_of_record(const struct poet_samples *s,
                              const struct poet_samples_record *record) {
  return poet_crc(s->start, record, offsetof(struct poet_samples_record, crc));
}

static POET_CHECKED int write_record(struct poet_samples *s, uint32_t epoch,
                                     uint32_t reset) {
  struct poet_samples_record record = {.magic = POET_SAMPLES_MAGIC,
                                       .sequence = s->record.sequence + 1,
                                       .epoch = epoch,
                                       .sample_bytes = kind(s),
                                       .classes = s->classes,
                                       .slots = s->slots,
                                       .reset = reset};
  record.crc = crc_of_record(s, &record);
  s->unsure_block = record_block(s, record.sequence);
  TRY(poet_write_record(s->p, s->unsure_block, &record, sizeof record));
  TRY(poet_flush_all(s->p));
  s->record = record;
  s->unsure_block = 0;
  return 0;
}

int poet_samples_settle(struct poet_samples *s) {
  const uint32_t nothing = 0;
  if (s->unsure_block && s->unsure_block < place_block(s, 0)) {
    return write_record(s, s->record.epoch, s->record.reset);
  }
  if (s->unsure_block) {
    TRY(poet_write_record(s->p, s->unsure_block, &nothing, sizeof nothing));
    TRY(poet_flush_all(s->p));
    s->unsure_block = 0;
  }
  return 0;
}

/* Try it now, if there was an error, which is returned. */
static POET_CHECKED int settled(struct poet_samples *s, int error) {
  if (error) {
    poet_ignore(poet_samples_settle(s));
  }
  return error;
}

static POET_CHECKED int read_records(struct poet_samples *s) {
  for (uint32_t i = 0; i < 2; i++) {
    struct poet_samples_record found;
    TRY(poet_get(s->p, record_block(s, i), 0, &found, sizeof found));
    if (found.magic == POET_SAMPLES_MAGIC &&
        found.crc == crc_of_record(s, &found) &&
        found.sequence > s->record.sequence) {
      s->record = found;
    }
  }
  return 0;
}

static void empty(struct poet_samples *s) {
  const uint32_t places = (uint32_t)s->classes * s->places;
  memset(s->from, 0, places * sizeof *s->from);
  memset(s->next, 0, s->classes * sizeof *s->next);
}

/* Read the header of a place. `number` must be the one that belongs there; the
 * sample is not `whole` if its CRC is wrong. */
static POET_CHECKED int read_header(const struct poet_samples *s,
                                    uint32_t place, struct poet_sample *header,
                                    bool *whole) {
  const uint32_t block = place_block(s, place);
  uint32_t crc;
  TRY(poet_get(s->p, block, 0, header, sizeof *header));
  *whole = header->magic == POET_SAMPLE_MAGIC &&
           header->epoch == s->record.epoch && header->from &&
           header->label == place / s->places &&
           header->number % s->places == place % s->places;
  if (*whole) {
    crc = crc_of_header(s, header);
    TRY(poet_crc_stored(s->p, block, sizeof *header, s->sample_bytes, &crc));
    *whole = crc == header->crc;
  }
  return 0;
}

/* No sample is drawn later than a newer one of its class: a newer one can have
 * a smaller `from` if steps were lost in between. */
static void order(struct poet_samples *s, uint32_t label) {
  uint32_t least = UINT32_MAX;
  for (uint32_t i = 1; i <= s->places && i <= s->next[label]; i++) {
    uint32_t *from = &s->from[place_of(s, label, s->next[label] - i)];
    if (*from > least) {
      *from = least;
    }
    if (*from) {
      least = *from;
    }
  }
}

/* Find the samples of a class. A place in front of the newest sample may hold
 * one of an earlier round, if the power was cut. */
static POET_CHECKED int find_samples(struct poet_samples *s, uint32_t label) {
  struct poet_sample header;
  bool whole;
  for (uint32_t round = 0; round < 2; round++) {
    for (uint32_t i = 0; i < s->places; i++) {
      const uint32_t place = label * s->places + i;
      TRY(read_header(s, place, &header, &whole));
      if (!round && whole && header.number >= s->next[label]) {
        s->next[label] = header.number + 1;
      }
      if (round && whole && s->next[label] - header.number <= s->places) {
        s->from[place] = header.from;
      }
    }
  }
  return 0;
}

int poet_samples_open(struct poet_samples *s, bool is_new) {
  s->places = (uint16_t)poet_samples_places(s->slots, !s->ram);
  s->place_blocks = blocks_of_place(s->sample_bytes, s->erase_blocks);
  s->record = (struct poet_samples_record){0};
  s->unsure_block = 0;
  empty(s);
  if (s->ram) {
    return 0;
  }
  s->start = poet_crc(s->p->model.crc, &s->p->store.identity,
                      sizeof s->p->store.identity);
  TRY(read_records(s));
  if (is_new || s->record.classes != s->classes ||
      s->record.slots != s->slots || s->record.sample_bytes != kind(s)) {
    return write_record(s, s->record.epoch + 1, s->record.reset);
  }
  for (uint32_t label = 0; label < s->classes; label++) {
    TRY(find_samples(s, label));
    order(s, label);
  }
  return 0;
}

int poet_samples_mark(struct poet_samples *s, uint32_t epoch, uint32_t reset) {
  if (s->ram) {
    return 0;
  }
  TRY(poet_samples_settle(s));
  return settled(s, write_record(s, epoch, reset));
}

void poet_samples_unmark(struct poet_samples *s, uint32_t epoch) {
  if (!s->ram) {
    s->record.epoch = epoch;
    s->record.reset = 0;
    s->unsure_block = record_block(s, s->record.sequence + 1);
    poet_ignore(poet_samples_settle(s));
  }
}

void poet_samples_forget(struct poet_samples *s) {
  empty(s);
}

/* Return 1 if the sample with this number is there and step `step` may draw
 * it. */
static uint32_t is_for(const struct poet_samples *s, uint32_t label,
                       uint32_t number, uint32_t step) {
  const uint32_t from = s->from[place_of(s, label, number)];
  return from && from <= step;
}

/* May a step choose the sample that lies where the next one of its class goes,
 * although that one is there? The first step that may is the last one to which
 * newer samples are closed. */
static bool is_in_use(const struct poet_samples *s, uint32_t label,
                      uint32_t from, uint32_t first) {
  const uint32_t next = s->next[label];
  const uint32_t oldest = s->from[place_of(s, label, next)];
  const uint32_t step = oldest > first ? oldest : first;
  uint32_t newer = from <= step;
  if (!oldest || oldest >= from || first >= from) {
    return false;
  }
  for (uint32_t i = 1; i < s->places; i++) {
    newer += is_for(s, label, next - i, step);
  }
  return newer < s->slots;
}

static POET_CHECKED int write_sample(struct poet_samples *s, uint32_t place,
                                     const struct poet_sample *header,
                                     const uint8_t *sample) {
  const uint32_t block = place_block(s, place);
  uint32_t at = sizeof *header;
  TRY(poet_settle(s->p)); /* an erase forgets a block that is to be written */
  TRY(poet_erase(s->p, block, s->place_blocks));
  TRY(poet_put_later(s->p, block, 0, header, sizeof *header));
  for (uint32_t left = s->sample_bytes; left;) {
    const uint32_t room = POET_BLOCK - at % POET_BLOCK;
    const uint32_t part = left < room ? left : room;
    TRY(poet_put_later(s->p, block + at / POET_BLOCK, at % POET_BLOCK, sample,
                       part));
    at += part;
    sample += part;
    left -= part;
  }
  TRY(poet_settle(s->p));
  return poet_flush_all(s->p);
}

int poet_samples_add(struct poet_samples *s, uint32_t label, uint32_t from,
                     uint32_t first, const void *sample) {
  const uint32_t number = s->next[label];
  const uint32_t place = place_of(s, label, number);
  struct poet_sample header = {.magic = POET_SAMPLE_MAGIC,
                               .epoch = s->record.epoch,
                               .number = number,
                               .from = from,
                               .label = label};
  if (is_in_use(s, label, from, first)) {
    return POET_BUSY;
  }
  if (s->ram) {
    memcpy(s->ram + place * s->sample_bytes, sample, s->sample_bytes);
  } else {
    TRY(poet_samples_settle(s));
    header.crc = poet_crc(crc_of_header(s, &header), sample, s->sample_bytes);
    s->from[place] = 0; /* a write that fails leaves no sample */
    s->unsure_block = place_block(s, place);
    TRY(settled(s, write_sample(s, place, &header, sample)));
    s->unsure_block = 0;
  }
  s->from[place] = from;
  s->next[label] = number + 1;
  order(s, label);
  return 0;
}

uint32_t poet_samples_count(const struct poet_samples *s, uint32_t label,
                            uint32_t step) {
  const uint32_t next = s->next[label];
  uint32_t count = 0;
  for (uint32_t i = 1; i <= s->places && i <= next && count < s->slots; i++) {
    count += is_for(s, label, next - i, step);
  }
  return count;
}

/* Return a number below `count`, which is at most 65535. */
static uint32_t choose(uint32_t seed, uint32_t step, uint32_t i,
                       uint32_t count) {
  const uint32_t words[2] = {step, i};
  uint32_t hash = poet_crc(seed, words, sizeof words);
  hash = (hash ^ hash >> 16) * 0x85ebca6bu; /* of MurmurHash3 */
  hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
  return ((hash ^ hash >> 16) >> 16) * count >> 16;
}

bool poet_samples_draw(const struct poet_samples *s, uint32_t seed,
                       uint32_t step, uint32_t batch, uint32_t i,
                       uint32_t *label, struct poet_sample_reader *reader) {
  uint32_t known = 0, class = 0;
  for (uint32_t c = 0; c < s->classes; c++) {
    known += poet_samples_count(s, c, step) != 0;
  }
  if (!known) {
    return false;
  }
  uint32_t turn = (step % known * (batch % known) + i % known) % known;
  while (!poet_samples_count(s, class, step) || turn--) {
    class++;
  }
  const uint32_t count = poet_samples_count(s, class, step);
  uint32_t newer = choose(seed, step, i, count);
  uint32_t number = s->next[class] - 1;
  while (!is_for(s, class, number, step) || newer--) {
    number--;
  }
  *label = class;
  *reader = (struct poet_sample_reader){.place = place_of(s, class, number),
                                        .number = number};
  return true;
}

uint32_t poet_samples_room(const struct poet_samples *s,
                           const struct poet_sample_reader *reader) {
  const uint32_t at =
      ((uint32_t)sizeof(struct poet_sample) + reader->offset) % POET_BLOCK;
  const uint32_t left = s->sample_bytes - reader->offset;
  return s->ram || left < POET_BLOCK - at ? left : POET_BLOCK - at;
}

int poet_samples_read(struct poet_samples *s, struct poet_sample_reader *reader,
                      void *to, uint32_t size) {
  const uint32_t block = place_block(s, reader->place);
  struct poet_sample header;
  if (s->ram) {
    memcpy(to, s->ram + reader->place * s->sample_bytes + reader->offset, size);
    reader->offset += size;
    return 0;
  }
  bool damaged = false;
  if (!reader->offset) {
    TRY(poet_get(s->p, block, 0, &header, sizeof header));
    reader->crc = crc_of_header(s, &header);
    reader->expected = header.crc;
    /* where the storage lost a sample, it has the one that was replaced */
    damaged =
        header.number != reader->number || header.epoch != s->record.epoch;
  }
  TRY(poet_get(s->p, block, sizeof header + reader->offset, to, size));
  reader->crc = poet_crc(reader->crc, to, size);
  reader->offset += size;
  if (reader->offset == s->sample_bytes) {
    damaged |= reader->crc != reader->expected;
  }
  if (damaged) {
    s->from[reader->place] = 0; /* as the next start would leave it out */
    return POET_ERROR_page_damaged;
  }
  return 0;
}

#endif
