/* The SD driver on a wire that disturbs bytes, with a processor that is reset.

   Rules, in addition to those of bench.c: what an access returns without error
   is right, unless bytes were forged so that a CRC may pass; and when the wire
   is good again, the card mounts, reads and writes. Sanitizers see the rest. */
#define _GNU_SOURCE /* memfd_create */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

enum {
  BLOCK = 512,
  TOKEN = 0xfe, /* before a block that the card sends */
  BLOCKS = 1024,
  USED = 32,
  MOST = 4,
  ACCESSES = 6,
  RARE = 24,
  SEEN = 7
};
#include "../fuzz.h"

enum { MOUNTED, READ, WRITTEN, MOVED, FAILED, RESET, DISTURBED };

static const char *const names[SEEN] = {"mounted", "read",  "written",  "moved",
                                        "failed",  "reset", "disturbed"};
static uint32_t rare;          /* one disturbance in this many exchanges */
static bool may_forge, forged; /* by disturbances that a CRC may not find */
static bool may_be_late;       /* the card may report a failed write late */
static uint8_t expected[USED + MOST][BLOCK];
static char image[64];
static uint8_t *content; /* of the image: shared memory */

/* One flipped bit, which a CRC always finds. But a bit that makes or hides the
   token before a block moves the block: one CRC in 65,536 passes by chance. */
static void flip(uint8_t *bytes, uint32_t size) {
  const uint32_t at = (any(256) << 8 | any(256)) % size;
  forged |= bytes[at] == TOKEN;
  bytes[at] ^= (uint8_t)(1u << any(8));
  forged |= bytes[at] == TOKEN;
}

static void from_host(uint8_t *bytes, uint32_t size) {
  if (any(rare) == 0) {
    seen[DISTURBED]++;
    flip(bytes, size);
  }
}

static void from_card(uint8_t *bytes, uint32_t size) {
  if (any(rare))
    return;
  const uint32_t what = any(may_forge ? 6 : 3);
  seen[DISTURBED]++;
  if (what < 2) {
    flip(bytes, size);
    /* The answer to CMD13 has no CRC. It alone reports some failed writes. */
    forged |= may_be_late && size == 1;
  } else if (what == 2) { /* the card is out, or its line floats */
    forged |= memchr(bytes, TOKEN, size) != NULL;
    memset(bytes, 0xff, size);
  } else if (what == 3) { /* the CRC of zeros is zero */
    memset(bytes, 0, size);
    forged = true;
  } else if (what == 4) {
    bytes[any(256) % size] = (uint8_t)any(256);
    forged = true;
  } else {
    for (uint32_t i = 0; i < size; i++)
      bytes[i] = (uint8_t)any(256);
    forged = true;
  }
}

static void disturb(bool on) {
  bench.from_host = on ? from_host : NULL;
  bench.from_card = on ? from_card : NULL;
}

static void fill(uint8_t *data, uint32_t size) {
  const uint32_t begin = any(256);
  for (uint32_t i = 0; i < size; i++)
    data[i] = (uint8_t)(begin + i * 7 + i / BLOCK);
}

static void add_fault(void) {
  static const enum card_fault kinds[] = {CARD_READ_ERROR, CARD_READ_CRC,
                                          CARD_WRITE_CRC,  CARD_WRITE_ERROR,
                                          CARD_LATE_ERROR, CARD_SLOW_WRITE};
  const enum card_fault kind = kinds[any(6)];
  may_be_late |= kind == CARD_LATE_ERROR;
  sdcard_add_fault(bench.card, kind, 1 + any(12), 1 + any(3),
                   kind == CARD_SLOW_WRITE ? 200000 : any(3));
}

/* What the driver has reported as written is on the card. */
static void write_blocks(uint32_t block, uint32_t count, uint8_t *data) {
  fill(data, count * BLOCK);
  const uint64_t cut = any(RARE) ? UINT64_MAX : any(256) * 16 + any(16);
  const int result = bench_write(block, count, data, cut);
  if (result == 0) {
    seen[WRITTEN]++;
    rule(forged || !memcmp(content + block * BLOCK, data, count * BLOCK),
         "a written block is on the card");
  }
  seen[FAILED] += result < 0;
  seen[RESET] += result > 0;
  memcpy(expected, content, sizeof expected);
}

static void read_blocks(uint32_t block, uint32_t count, uint8_t *data) {
  if (bench_read(block, count, data)) {
    seen[FAILED]++;
  } else {
    seen[READ]++;
    rule(forged || !memcmp(expected[block], data, count * BLOCK),
         "a block that was read is that of the card");
  }
}

static void move(uint32_t block, uint32_t count, uint8_t *data) {
  const uint32_t size = (count * BLOCK - 8 - any(200)) & ~3u;
  fill(data, size);
  uint8_t *copy = malloc(size);
  if (bench_transfer(block, data, size, true) ||
      bench_transfer(block, copy, size, false)) {
    seen[FAILED]++;
  } else {
    seen[MOVED]++;
    rule(forged || !memcmp(copy, data, size), "a tensor comes back");
  }
  free(copy);
  memcpy(expected, content, sizeof expected);
}

static void mount(const struct sdcard_config *config) {
  seen[MOUNTED] += bench_mount() == BLOCKS;
  const uint32_t mib = bench_allocation_mib();
  rule(forged || !mib || (config->sd_status && config->au_size && mib == 64),
       "the allocation unit is that of the card, or unknown");
}

static void play(void) {
  const struct sdcard_config config = {.high_capacity = any(2),
                                       .strict = true,
                                       .stopped_by_command = any(2),
                                       .response_bytes = 1 + any(8),
                                       .init_us = 300,
                                       .read_first_us = 100,
                                       .read_next_us = any(60),
                                       .write_us = 200,
                                       .write_next_us = 200,
                                       .stop_us = any(200),
                                       .busy_bytes = any(9),
                                       .erase_group_blocks = 64,
                                       .sd_status = any(8) != 0,
                                       .au_size = any(2) * 15,
                                       .seed = 1};
  rule(bench_start(image, &config), "the card starts");
  memcpy(expected, content, sizeof expected);
  forged = may_be_late = false;
  may_forge = any(4) == 0;
  rare = 16u << any(7);
  mount(&config);
  disturb(true);
  for (uint32_t i = 0; i < ACCESSES; i++) {
    const uint32_t block = any(USED), count = 1 + any(MOST);
    uint8_t *data = malloc(count * BLOCK); /* a sanitizer sees its end */
    switch (any(5)) {
    case 0:
      mount(&config);
      break;
    case 1:
      read_blocks(block, count, data);
      break;
    case 2:
      move(block, count, data);
      break;
    case 3:
      add_fault();
      break;
    default:
      write_blocks(block, count, data);
    }
    free(data);
  }
  disturb(false);
  forged = false;
  uint8_t data[MOST * BLOCK], got[MOST * BLOCK];
  fill(data, sizeof data);
  bench_reset();
  /* Forged bytes may have been commands, of CRC checks for one. */
  rule(bench_mount() == BLOCKS, "a good wire mounts the card");
  for (int i = 0; i < 8; i++) /* faults of the card may be left */
    if (!bench_write(0, MOST, data, UINT64_MAX) && !bench_read(0, MOST, got)) {
      rule(!memcmp(data, got, sizeof got),
           "a good wire brings the right bytes");
      return;
    } else {
      bench_mount();
    }
  rule(false, "a good wire reads and writes");
}

static void prepare(void) {
  const int file = memfd_create("card", 0);
  rule(file >= 0 && !ftruncate(file, BLOCKS * BLOCK), "memory for the card");
  content = mmap(NULL, BLOCKS * BLOCK, PROT_READ, MAP_SHARED, file, 0);
  rule(content != MAP_FAILED, "memory for the card");
  snprintf(image, sizeof image, "/proc/self/fd/%d", file);
}
