/* Training by what a host has left behind the tensors, without a host. */
#include "runtime.h"

/* CRC-32 of anything and, behind it, its own CRC-32. */
#define RESIDUE 0x2144df1cu

uint32_t poet_job_block(uint32_t data_blocks) {
  return POET_DATA_BLOCK + (data_blocks + POET_ERASE_BLOCKS - 1) /
                               POET_ERASE_BLOCKS * POET_ERASE_BLOCKS;
}

int poet_job_open(struct poet *p, struct poet_job *job) {
  struct poet_facts facts;
  uint32_t crc;
  TRY(poet_ready(p));
  const uint32_t block = poet_job_block(p->committed.data_blocks);
  if (block >= p->store.total_blocks) {
    return POET_ERROR_no_schedule;
  }
  TRY(poet_get(p, block, 0, job, sizeof *job));
  if (job->magic != POET_JOB_MAGIC ||
      job->crc != poet_crc(0, job, offsetof(struct poet_job, crc)) ||
      p->committed.step - job->first >= job->steps || !job->batch) {
    return POET_ERROR_no_schedule;
  }
  TRY(poet_load(p, job->model_bytes, job->plan_bytes, &facts));
  TRY(poet_crc_stored(p, block + 1, 0, job->steps * job->batch * 4, &crc));
  const uint32_t room = p->memory.arena_bytes / job->batch;
  return crc == job->order_crc && poet_committed(p) && job->data_bytes < room &&
                 job->label_bytes < room - job->data_bytes
             ? 0
             : POET_ERROR_bad_crc;
}

int poet_job_next(struct poet *p, const struct poet_job *job) {
  const uint32_t step = p->committed.step - job->first;
  const uint32_t data_bytes = job->data_bytes;
  const uint32_t rest_bytes = job->label_bytes + 4;
  uint8_t *data = p->memory.arena;
  uint8_t *label = data + job->batch * data_bytes;
  uint32_t at = POET_BLOCK + 4 * step * job->batch;
  if (step) {
    TRY(poet_write(p, POET_OBJECT_JOB, 0,
                   job->loss_block * POET_BLOCK + 4 * (step - 1),
                   &p->committed.loss, sizeof p->committed.loss));
  }
  if (step == job->steps) {
    return POET_ERROR_no_schedule;
  }
  p->dirty_bytes = p->memory.arena_bytes;
  for (uint32_t i = 0; i < job->batch; i++) {
    uint32_t index;
    TRY(poet_read(p, POET_OBJECT_JOB, 0, at, &index, sizeof index));
    const uint32_t sample =
        job->sample_block * POET_BLOCK + index * (data_bytes + rest_bytes);
    TRY(poet_read(p, POET_OBJECT_JOB, 0, sample, data, data_bytes));
    /* The CRC lies for a while where the next label comes. */
    TRY(poet_read(p, POET_OBJECT_JOB, 0, sample + data_bytes, label,
                  rest_bytes));
    if (poet_crc(poet_crc(index, data, data_bytes), label, rest_bytes) !=
        RESIDUE) {
      return poet_fail(p, POET_ERROR_page_damaged, job->data);
    }
    at += 4;
    data += data_bytes;
    label += job->label_bytes;
  }
  TRY(poet_write(p, POET_OBJECT_TENSOR, job->data, 0, p->memory.arena,
                 job->batch * data_bytes));
  return poet_write(p, POET_OBJECT_TENSOR, job->label, 0, data,
                    job->batch * job->label_bytes);
}
