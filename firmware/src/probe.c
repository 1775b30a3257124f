/*
 * probe.c - measure an operator, transfers and commits. No measurement needs a
 * schedule.
 *
 * State: none. The measurements use the arena, queue entry 0 and the last
 * blocks of the partition that no loaded or committed model uses. So the
 * weights and the schedule stay unchanged, even if the power is cut.
 */
#include <string.h>

#include "poet/kernel.h"
#include "plan.h"

static uint32_t now(const struct poet *p) {
  return poet_ticks(p->port);
}

/* Return a pointer to an operand in the arena, or NULL if the operand does not
 * fit. */
static void *operand(struct poet *p, uint32_t offset, uint32_t size) {
  return size && offset % 4 == 0 ? poet_arena(p, offset, size) : NULL;
}

/* The time of a kernel does not include the watchdog's feed. */
enum { TIMED_CALLS = 64 }; /* at a time, between two feeds */

int poet_probe_op(struct poet *p, uint32_t step, uint16_t repeat,
                  const struct poet_op *op, const uint32_t *offsets,
                  uint32_t *ticks) {
  struct poet_call call = {
      .op = op, .whole = op, .first = true, .last = true, .step = step};
  const uint32_t count = op->input_count;
  poet_abandon(p);
  if (POET_LIBRARY && p->status.running) { /* called from `poll` */
    return POET_ERROR_busy;
  }
  poet_use_arena(p);
  for (uint32_t i = 0; i <= count; i++) {
    void *at = operand(p, offsets[i], poet_operand_bytes(op, i));
    if (!at) {
      return poet_fail(p, POET_ERROR_bad_table, i);
    }
    if (i == count) {
      call.out = at;
    } else {
      call.in[i] = at;
    }
  }
  if (op->workspace_bytes) {
    call.workspace = operand(p, offsets[count + 1], op->workspace_bytes);
    if (!call.workspace) {
      return poet_fail(p, POET_ERROR_bad_table, count + 1);
    }
  }
  if (!POET_HAS_KERNEL(op->kernel)) {
    return poet_fail(p, POET_ERROR_no_kernel, op->kernel);
  }
  poet_kernel_fn *kernel = poet_kernel(op->kernel);
  *ticks = 0;
  while (repeat) {
    uint32_t calls = repeat < TIMED_CALLS ? repeat : TIMED_CALLS;
    repeat = (uint16_t)(repeat - calls);
    poet_alive(p);
    const uint32_t begin = now(p);
    while (calls--) {
      kernel(&call);
    }
    *ticks += now(p) - begin;
  }
  return 0;
}

/* Measured transfers use several erase groups in turn, as the transfers of a
 * step do. */
enum { SCRATCH_APART = 64, SCRATCH_BLOCKS = 4 * SCRATCH_APART };

/* Count the blocks at the end of the partition that no model uses, up to the
 * larger of SCRATCH_BLOCKS and `least`. Fail if there are fewer than
 * `least`. */
static POET_CHECKED int scratch(struct poet *p, uint32_t least,
                                uint32_t *count) {
  TRY(poet_ready(p));
  if (POET_LIBRARY && p->status.running) { /* called from `poll` */
    return POET_ERROR_busy;
  }
  if (poet_is_flash(p) || !poet_is_card(p)) {
    return POET_ERROR_no_storage;
  }
  const uint32_t all = p->store.total_blocks - POET_DATA_BLOCK;
  uint32_t used = p->loaded ? p->model.data_blocks : 0;
  if (p->committed.now.step != POET_NO_STEP &&
      used < p->committed.data_blocks) {
    used = p->committed.data_blocks;
  }
  if (used > all || least > all - used) {
    return poet_fail(p, POET_ERROR_storage_small,
                     POET_DATA_BLOCK + used + least);
  }
  /* Empty the cache, because the caller writes to storage without it. */
  poet_forget(p, 0);
  *count = all - used < SCRATCH_BLOCKS ? all - used : SCRATCH_BLOCKS;
  if (*count < least) {
    *count = least;
  }
  return 0;
}

int poet_probe_transfer(struct poet *p, bool write, uint32_t size,
                        uint16_t repeat, uint32_t *ticks, uint32_t *cpu_ticks) {
  struct poet_transfer *transfer = &p->memory.queue[0];
  const uint32_t blocks = poet_tensor_blocks(size);
  struct poet_usage before, after;
  uint32_t count;
  *ticks = 0;
  *cpu_ticks = 0;
  if (!size || size > p->memory.arena_bytes) {
    return poet_fail(p, POET_ERROR_bad_object, p->memory.arena_bytes);
  }
  TRY(scratch(p, blocks, &count));
  poet_use_arena(p);
  transfer->data = p->memory.arena;
  transfer->size_bytes = size;
  transfer->renews = false;
  transfer->apart = false;
  transfer->shared = false;
  transfer->first_word = 0;
  transfer->tensor = POET_NONE;
  transfer->write = write;
  poet_usage(p->port, &before);
  const uint32_t begin = now(p);
  for (uint32_t i = 0; i < repeat; i++) {
    transfer->block = p->partition + p->store.total_blocks -
                      blocks * (1 + i % (count / blocks));
    transfer->trailer[1] = 0;
    poet_submit(p, transfer);
    while (!poet_transfer_has_ended(transfer)) {
      poet_idle(p->port);
    }
    *ticks += transfer->end - transfer->begin;
    const int error = poet_judge(p, transfer);
    /* Blocks that were never written have no valid CRC, but reading them takes
     * the same time. */
    if (error && error != POET_ERROR_page_damaged) {
      return error;
    }
  }
  *cpu_ticks = now(p) - begin;
  poet_usage(p->port, &after);
  *cpu_ticks -= after.asleep - before.asleep;
  return 0;
}

int poet_probe_commit(struct poet *p, uint16_t repeat, uint32_t *ticks) {
  const struct poet_port *port = p->port;
  uint32_t count;
  *ticks = 0;
  TRY(scratch(p, 1, &count));
  uint32_t *zeros = p->memory.cache->words; /* scratch() has emptied it */
  memset(zeros, 0, POET_BLOCK);
  const uint32_t begin = now(p);
  for (uint32_t i = 0; i < repeat; i++) {
    const uint32_t back = 1 + i * SCRATCH_APART % count;
    const uint32_t block = p->partition + p->store.total_blocks - back;
    if (poet_flush(port) || port->write(port->context, block, zeros, 1) ||
        poet_flush(port) || port->read(port->context, block, zeros, 1)) {
      p->storage_status = POET_ERROR_storage_failed;
      return POET_ERROR_storage_failed;
    }
  }
  *ticks = now(p) - begin;
  return 0;
}
