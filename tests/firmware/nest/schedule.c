#include "schedule.h"

#include <string.h>

bool schedule_read(struct schedule *schedule, const uint8_t *data,
                   size_t size) {
  uint32_t model_bytes;
  if (size < SIZE_BYTES) {
    return false;
  }
  memcpy(&model_bytes, data, sizeof model_bytes);
  const size_t left = size - SIZE_BYTES;
  if (model_bytes < sizeof schedule->model.header ||
      model_bytes > sizeof schedule->model || model_bytes > left ||
      left - model_bytes < sizeof schedule->plan.header ||
      left - model_bytes > sizeof schedule->plan) {
    return false;
  }
  schedule->model_bytes = model_bytes;
  schedule->plan_bytes = (uint32_t)(left - model_bytes);
  memcpy(schedule->model.bytes, data + SIZE_BYTES, model_bytes);
  memcpy(schedule->plan.bytes, data + SIZE_BYTES + model_bytes,
         schedule->plan_bytes);
  return true;
}

size_t schedule_write(const struct schedule *schedule, uint8_t *data,
                      size_t most) {
  const size_t size =
      SIZE_BYTES + (size_t)schedule->model_bytes + schedule->plan_bytes;
  if (size > most) {
    return 0;
  }
  memcpy(data, &schedule->model_bytes, SIZE_BYTES);
  memcpy(data + SIZE_BYTES, schedule->model.bytes, schedule->model_bytes);
  memcpy(data + SIZE_BYTES + schedule->model_bytes, schedule->plan.bytes,
         schedule->plan_bytes);
  return size;
}

void schedule_seal(struct schedule *schedule) {
  struct poet_model *model = &schedule->model.header;
  struct poet_plan_header *plan = &schedule->plan.header;
  const uint32_t after_crc = offsetof(struct poet_model, crc) + 4;
  const uint32_t after_plan_crc = offsetof(struct poet_plan_header, crc) + 4;
  model->magic = POET_MODEL_MAGIC;
  model->version = POET_VERSION;
  model->fingerprint = poet_fingerprint();
  model->crc = poet_crc(0, schedule->model.bytes + after_crc,
                        schedule->model_bytes - after_crc);
  plan->magic = POET_PLAN_MAGIC;
  plan->model_crc = model->crc;
  plan->bit_bytes = schedule->plan_bytes - (uint32_t)sizeof *plan;
  plan->crc = poet_crc(0, schedule->plan.bytes + after_plan_crc,
                       schedule->plan_bytes - after_plan_crc);
}

int schedule_load(struct poet *p, const struct schedule *schedule) {
  struct poet_facts facts;
  return poet_load(p, schedule->model_bytes, schedule->plan_bytes, &facts);
}

int schedule_upload(struct poet *p, const struct schedule *schedule) {
  int error = poet_write(p, POET_OBJECT_MODEL, 0, 0, schedule->model.bytes,
                         schedule->model_bytes);
  if (!error) {
    error = poet_write(p, POET_OBJECT_PLAN, 0, 0, schedule->plan.bytes,
                       schedule->plan_bytes);
  }
  return error ? error : schedule_load(p, schedule);
}

struct schedule_counts schedule_counts(struct poet *p) {
  struct schedule_counts counts = {0};
  struct poet_statement statement = {0};
  rule(!poet_decode_start(p), "a loaded plan can be decoded");
  do {
    rule(!poet_decode(p, &statement), "a loaded plan can be decoded");
    if (statement.code == POET_STATEMENT_stream) {
      counts.nests++;
      counts.pairs += statement.nest.pair;
      counts.statistics += statement.nest.statistics;
    }
  } while (statement.code != POET_STATEMENT_end);
  return counts;
}
