/* An input of the fuzzers of nests: a schedule.

   u32 bytes of the model part | model part | plan part */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include "../board.h"

enum {
  SIZE_BYTES = 4, /* of the size that begins an input */
  MODEL_BYTES = 1 << 19,
  PLAN_BYTES = 1 << 16
};

struct schedule {
  union {
    struct poet_model header;
    uint8_t bytes[MODEL_BYTES];
  } model;
  union {
    struct poet_plan_header header;
    uint8_t bytes[PLAN_BYTES];
  } plan;
  uint32_t model_bytes, plan_bytes;
};

/* Return false if the data have no room for both headers. */
bool schedule_read(struct schedule *schedule, const uint8_t *data, size_t size);
/* Write it as an input. Return its size, or 0 if it exceeds `most`. */
size_t schedule_write(const struct schedule *schedule, uint8_t *data,
                      size_t most);
/* Make everything right that a board compares before it looks at a schedule:
   magic numbers, versions, fingerprint, sizes and CRCs. */
void schedule_seal(struct schedule *schedule);
/* Write the schedule to the board, and load it. */
int schedule_upload(struct poet *p, const struct schedule *schedule);
int schedule_load(struct poet *p, const struct schedule *schedule);

/* What a step of the loaded schedule runs. */
struct schedule_counts {
  uint32_t nests, pairs, statistics; /* of the nests */
};
struct schedule_counts schedule_counts(struct poet *p);

#endif
