/* A board in memory for the fuzzers of the runtime: its card, and its port.

   Rules of the port: after the partition table was read, each access lies in
   the partition of that table. Block 0 is never written. A transfer uses only
   bytes of the arena. After the power of the card is off, a call ends soon. */
#ifndef BOARD_H
#define BOARD_H

#include <stdbool.h>
#include <stdint.h>

#include "poet/server.h"
#include "plan.h"

enum { PARTITION = 8 }; /* first block of the partition on good cards */

/* A card with a content to which every round returns. */
struct card {
  uint8_t *bytes; /* what is on the card now */
  uint8_t *good;
  uint8_t *dirty; /* for each block: it may differ from `good` */
  uint32_t *list; /* the dirty blocks */
  uint32_t blocks, dirty_count;
  uint32_t model_bytes, plan_bytes, arena_bytes; /* of its schedule */
  uint32_t job; /* its first block on the card */
};

struct board {
  struct card *card;
  struct poet *poet;
  uint32_t off_at;   /* number of the access at which the card's power fails */
  uint32_t rare;     /* one access in this many fails; 0: none */
  uint32_t lie_at;   /* number of the access at which `lie` is called */
  void (*lie)(void); /* changes the card */
  uint32_t accesses;
  uint32_t changes;      /* of the card in this round */
  uint32_t changes_seen; /* of them, before the card was mounted */
  bool reads_only;       /* a write breaks a rule */
  uint32_t lag;          /* of 4 accesses, those at which the lane waits */
  uint32_t now;          /* ticks */
  bool is_flash;         /* the storage is the chip's own flash */
  bool renews_tables;    /* as a whole: the board keeps no rows */
  /* NULL, or called before a block is written: false if the card drops it. */
  bool (*writes)(uint32_t block, const uint8_t *data);
  /* NULL, or called after a read, which it may change. */
  void (*has_read)(uint32_t block, uint8_t *data, uint32_t count);
  void (*has_flushed)(void); /* NULL, or called after a flush */
};
extern struct board board;

uint32_t random_below(uint32_t end);
/* End the program if a rule is broken. */
void rule(bool kept, const char *what);

/* Read a card's image, which has a schedule. */
void card_open(struct card *card, const char *path);
/* Make a card with a partition to its end, and zeros in it. */
void card_make(struct card *card, uint32_t blocks);
void card_reset(struct card *card);
void card_touch(struct card *card, uint32_t block);

/* Start a board with this memory; all tables are on the heap, where a sanitizer
   sees their ends. Power off ends it. */
struct poet *board_power_on(uint32_t arena, uint16_t residents,
                            uint16_t tensors, uint16_t queue, uint16_t cache,
                            uint16_t trace);
void board_power_off(struct poet *poet);
/* Check that no transfer is left, and start to count the accesses of a call. */
void board_called(void);
bool board_is_off(void);

/* Return the commit on a good card. Another board reads it, and checks that all
   committed tensors are whole. */
struct poet_commit card_commit(struct card *card);

#endif
