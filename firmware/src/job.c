/*
 * job.c - training by a job on the card, without a host.
 *
 * State: only the caller's struct poet_job. The position in the job follows
 * from the committed step, so after a power cut poet_job_open continues at the
 * right step.
 *
 * Why a power cut at any moment does no harm:
 * - poet_job_next writes the loss of a step into the job before it prepares the
 *   next step. The commit record holds the loss of its step, so after a restart
 *   poet_job_next writes the same loss again. Steps since then are repeated.
 * - The batch goes to the INPUT slots of the next step. If the write is cut
 *   short, the next poet_job_next repeats it.
 *
 * The job's fields come from the card and are not trusted: poet_read and
 * poet_write check every range.
 */
#include <string.h>

#include "plan.h"

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
  if (poet_in_ram(p)) { /* its steps commit nothing */
    return POET_ERROR_no_schedule;
  }
  if (!poet_committed(p)) {
    return POET_ERROR_bad_crc;
  }
  TRY(check_order(p, job));
  poet_describe(p, &hello);
  const uint32_t at = job->loss_block * POET_BLOCK;
  TRY(poet_read(p, POET_OBJECT_JOB, 0, at, &log, sizeof log));
  /* Each start of a board that fails again and again would wear the card. */
  return memcmp(log.board, hello.board, sizeof log)
             ? poet_write(p, POET_OBJECT_JOB, 0, at, hello.board, sizeof log)
             : 0;
}

/* Bytes of a tensor on their way from the job. */
struct batch {
  uint16_t tensor;
  uint8_t *buffer; /* memory between homes, or `words` */
  uint32_t room;   /* of the buffer */
  uint32_t filled; /* bytes in the buffer */
  uint32_t offset; /* of these bytes in the tensor */
  uint32_t words[16];
};

/* Let the buffer be the largest range between homes, in whole blocks. */
static POET_CHECKED int find_room(struct poet *p, struct batch *batch) {
  uint32_t from = 0;
  batch->buffer = (uint8_t *)batch->words;
  batch->room = sizeof batch->words;
  TRY(poet_decode_homes(p));
  p->dirty_bytes = p->memory.arena_bytes;
  for (uint32_t i = 0; i <= p->decoder.resident_count; i++) {
    const struct poet_resident *next = &p->memory.residents[i];
    const bool last = i == p->decoder.resident_count;
    const uint32_t end = last ? p->memory.arena_bytes : next->offset;
    const uint32_t room = (end - from) / POET_BLOCK * POET_BLOCK;
    if (room > batch->room) {
      batch->buffer = p->memory.arena + from;
      batch->room = room;
    }
    from = last ? end : next->offset + next->size_bytes;
  }
  return 0;
}

static POET_CHECKED int write_out(struct poet *p, struct batch *batch) {
  const uint32_t offset = batch->offset, size = batch->filled;
  batch->offset += size;
  batch->filled = 0;
  return poet_write(p, POET_OBJECT_TENSOR, batch->tensor, offset, batch->buffer,
                    size);
}

/* Read a sample, and compare it with its CRC. Its bytes from `first` up to
 * `end` belong to the batch. */
static POET_CHECKED int take_sample(struct poet *p, const struct poet_job *job,
                                    uint32_t index, uint32_t first,
                                    uint32_t end, struct batch *batch) {
  const uint32_t size = job->data_bytes + job->label_bytes;
  const uint32_t begin =
      job->sample_block * POET_BLOCK + index * (size + (uint32_t)sizeof index);
  uint32_t crc = index, stored, other[16] = {0};
  for (uint32_t i = 0; i < size;) {
    const bool wanted = i >= first && i < end;
    uint8_t *to = wanted ? batch->buffer + batch->filled : (uint8_t *)other;
    uint32_t part = (i < first ? first : wanted ? end : size) - i;
    const uint32_t room = wanted ? batch->room - batch->filled : sizeof other;
    part = part < room ? part : room;
    TRY(poet_read(p, POET_OBJECT_JOB, 0, begin + i, to, part));
    crc = poet_crc(crc, to, part);
    i += part;
    batch->filled += wanted ? part : 0;
    if (batch->filled == batch->room) {
      TRY(write_out(p, batch));
    }
  }
  TRY(poet_read(p, POET_OBJECT_JOB, 0, begin + size, &stored, sizeof stored));
  return crc == stored ? 0
                       : poet_fail(p, POET_ERROR_page_damaged, batch->tensor);
}

/* Write the bytes from `first` up to `end` of all samples of a step into a
 * tensor. */
static POET_CHECKED int copy_batch(struct poet *p, const struct poet_job *job,
                                   uint32_t step, uint16_t tensor,
                                   uint32_t first, uint32_t end) {
  struct batch batch = {.tensor = tensor};
  TRY(find_room(p, &batch));
  for (uint32_t i = 0; i < job->batch; i++) {
    uint32_t index;
    TRY(poet_read(p, POET_OBJECT_JOB, 0,
                  POET_BLOCK + 4 * (step * job->batch + i), &index,
                  sizeof index));
    TRY(take_sample(p, job, index, first, end, &batch));
  }
  return batch.filled ? write_out(p, &batch) : 0;
}

int poet_job_next(struct poet *p, const struct poet_job *job) {
  const uint32_t last = poet_last_step(p), step = last - job->first;
  const uint32_t data_bytes = job->data_bytes;
  struct poet_saved saved;
  poet_alive(p); /* at a new step, which the port notes */
  if (step) {
    const float *loss =
        p->result.step == last ? &p->result.loss : &p->committed.now.loss;
    TRY(poet_write(p, POET_OBJECT_JOB, 0,
                   job->loss_block * POET_BLOCK +
                       (uint32_t)sizeof(struct poet_job_log) + 4 * (step - 1),
                   loss, sizeof *loss));
  }
  if (step == job->steps) {
    TRY(poet_save(p, &saved));
    return POET_ERROR_no_schedule;
  }
  TRY(copy_batch(p, job, step, job->data, 0, data_bytes));
  return copy_batch(p, job, step, job->label, data_bytes,
                    data_bytes + job->label_bytes);
}
