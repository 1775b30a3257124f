/*
 * job.c - training by a job on the card, without a host.
 *
 * State: only the caller's struct poet_job. The position in the job follows
 * from the committed step, so after a power cut poet_job_open continues at the
 * right step.
 *
 * Why a power cut at any moment does no harm:
 * - The commit record of a step holds the step's loss. poet_job_next writes
 *   that loss into the job before it prepares the next step, whose commit
 *   replaces the record. After a restart, poet_job_next writes the same loss
 *   again.
 * - The batch goes to the INPUT slots of the next step. If the write is cut
 *   short, the next poet_job_next repeats it.
 *
 * The job's fields come from the card and are not trusted: poet_read and
 * poet_write check every range.
 */
#include <string.h>

#include "runtime.h"

/* Compare the sample numbers of all steps with their CRC. Each pass reads as
 * many numbers as the arena holds. The check may take long, so a host can stop
 * the check, as it can stop a step. */
static POET_CHECKED int check_order(struct poet *p,
                                    const struct poet_job *job) {
  uint32_t left = 4 * job->steps * job->batch, at = POET_BLOCK, crc = 0;
  int error = 0;
  p->status =
      (struct poet_status){.running = 1, .step = p->committed.now.step + 1};
  while (left && !error) {
    const uint32_t size =
        left < p->memory.arena_bytes ? left : p->memory.arena_bytes;
    error = poet_asked_to_stop(p)
                ? POET_ERROR_stopped
                : poet_read(p, POET_OBJECT_JOB, 0, at, p->memory.arena, size);
    crc = poet_crc(crc, p->memory.arena, size);
    at += size;
    left -= size;
  }
  p->status.running = 0;
  TRY(error);
  return crc == job->order_crc ? 0 : POET_ERROR_bad_crc;
}

int poet_job_open(struct poet *p, struct poet_job *job) {
  struct poet_facts facts;
  struct poet_hello hello;
  struct poet_job_log log;
  TRY(poet_ready(p));
  const uint32_t block = poet_job_block(p->committed.data_blocks);
  if (block >= p->store.total_blocks) {
    return POET_ERROR_no_schedule;
  }
  TRY(poet_get(p, block, 0, job, sizeof *job));
  if (job->magic != POET_JOB_MAGIC ||
      job->crc != poet_crc(0, job, offsetof(struct poet_job, crc)) ||
      p->committed.now.step - job->first >= job->steps || !job->batch) {
    return POET_ERROR_no_schedule;
  }
  TRY(poet_load(p, job->model_bytes, job->plan_bytes, &facts));
  const uint32_t room = p->memory.arena_bytes / job->batch;
  if (!poet_committed(p) || job->data_bytes > room ||
      job->label_bytes > room - job->data_bytes) {
    return POET_ERROR_bad_crc;
  }
  TRY(check_order(p, job));
  poet_hello(p, &hello);
  const uint32_t at = job->loss_block * POET_BLOCK;
  TRY(poet_read(p, POET_OBJECT_JOB, 0, at, &log, sizeof log));
  /* Each start of a board that fails again and again would wear the card. */
  return memcmp(log.board, hello.board, sizeof log)
             ? poet_write(p, POET_OBJECT_JOB, 0, at, hello.board, sizeof log)
             : 0;
}

int poet_job_next(struct poet *p, const struct poet_job *job) {
  const uint32_t step = p->committed.now.step - job->first;
  const uint32_t data_bytes = job->data_bytes;
  const uint32_t label_bytes = job->label_bytes;
  uint8_t *data = p->memory.arena;
  uint8_t *label = data + job->batch * data_bytes;
  uint32_t at = POET_BLOCK + 4 * step * job->batch;
  poet_alive(p); /* at a new step, which the port notes */
  if (step) {
    TRY(poet_write(p, POET_OBJECT_JOB, 0,
                   job->loss_block * POET_BLOCK +
                       (uint32_t)sizeof(struct poet_job_log) + 4 * (step - 1),
                   &p->committed.now.loss, sizeof p->committed.now.loss));
  }
  if (step == job->steps) {
    return POET_ERROR_no_schedule;
  }
  p->dirty_bytes = p->memory.arena_bytes;
  for (uint32_t i = 0; i < job->batch; i++) {
    uint32_t index, crc;
    TRY(poet_read(p, POET_OBJECT_JOB, 0, at, &index, sizeof index));
    const uint32_t sample =
        job->sample_block * POET_BLOCK +
        index * (data_bytes + label_bytes + (uint32_t)sizeof crc);
    TRY(poet_read(p, POET_OBJECT_JOB, 0, sample, data, data_bytes));
    TRY(poet_read(p, POET_OBJECT_JOB, 0, sample + data_bytes, label,
                  label_bytes));
    TRY(poet_read(p, POET_OBJECT_JOB, 0, sample + data_bytes + label_bytes,
                  &crc, sizeof crc));
    if (crc !=
        poet_crc(poet_crc(index, data, data_bytes), label, label_bytes)) {
      return poet_fail(p, POET_ERROR_page_damaged, job->data);
    }
    at += 4;
    data += data_bytes;
    label += label_bytes;
  }
  TRY(poet_write(p, POET_OBJECT_TENSOR, job->data, 0, p->memory.arena,
                 job->batch * data_bytes));
  return poet_write(p, POET_OBJECT_TENSOR, job->label, 0, data,
                    job->batch * label_bytes);
}
