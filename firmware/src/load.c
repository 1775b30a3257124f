/*
 * load.c - load a schedule: check headers, CRCs and tables, then decode the
 * whole plan once, with the same decoder that a step uses. This file also
 * contains poet_init and poet_describe, the description of the board.
 *
 * State: loaded, model, plan, kept_at_start and loss. poet_load sets `loaded`
 * last, so after an error or a power cut during the load, no schedule is
 * loaded. poet_reset (store.c) clears these fields.
 */
#include <string.h>

#include "plan.h"
#include "poet/exact.h"
#include "poet/kernel.h"

static POET_CHECKED int check_plan(struct poet *p, uint32_t plan_bytes) {
  struct poet_plan_header *plan = &p->plan;
  TRY(poet_get_head(p, POET_PLAN_BLOCK, plan, sizeof *plan));
  if (plan->magic != POET_PLAN_MAGIC) {
    return POET_ERROR_bad_magic;
  }
  if (plan_bytes > POET_PLAN_BLOCKS * POET_BLOCK || plan_bytes < sizeof *plan ||
      plan->bit_bytes != plan_bytes - sizeof *plan) {
    return POET_ERROR_bad_plan;
  }
  TRY(poet_copy_part(p, POET_PLAN_BLOCK, plan_bytes, plan, sizeof *plan));
  if (plan->model_crc != p->model.crc) {
    return POET_ERROR_bad_crc;
  }
  if (!plan->commit_every || plan->home_count > p->model.stored_count ||
      (poet_in_ram(p) &&
       (plan->home_count != p->model.stored_count || plan->commit_every > 1))) {
    return poet_fail(p, POET_ERROR_bad_plan, 0);
  }
  if (plan->arena_bytes > p->memory.arena_bytes) {
    return poet_fail(p, POET_ERROR_arena_small, plan->arena_bytes);
  }
  if (plan->resident_max > p->memory.resident_capacity) {
    return poet_fail(p, POET_ERROR_table_small, plan->resident_max);
  }
  if (plan->queue_max > p->memory.queue_capacity) {
    return poet_fail(p, POET_ERROR_table_small, plan->queue_max);
  }
  return 0;
}

/* If the card did not write the newest commit's tensors, go back to the commit
 * before. If those are not right either, all of them are damaged: no trailer
 * matches generation 0. */
static POET_CHECKED int check_digest(struct poet *p) {
  uint32_t digest;
  for (uint32_t tries = 3; tries; tries--) { /* once more than needed */
    TRY(poet_stored_digest(p, false, &digest));
    if (digest == p->committed.now.digest) {
      return 0;
    }
    TRY(poet_roll_back(p));
  }
  p->committed.now.generation = 0;
  return 0;
}

int poet_validate(struct poet *p, uint32_t model_bytes, uint32_t plan_bytes) {
  struct poet_statement statement = {0};
  TRY(poet_check_model(p, model_bytes));
  TRY(check_plan(p, plan_bytes));
#if POET_LIBRARY
  if (!p->infers) {
    TRY(poet_check_storage(p));
  }
#endif
  TRY(poet_decode_start(p));
  do {
    TRY(poet_decode(p, &statement));
  } while (statement.code != POET_STATEMENT_end);
  return poet_is_forward(p) && !poet_is_resident(p, p->model.tensor_count - 1u)
             ? poet_fail(p, POET_ERROR_bad_plan, p->plan.statement_count)
             : 0;
}

static POET_CHECKED int load(struct poet *p, uint32_t model_bytes,
                             uint32_t plan_bytes, struct poet_facts *facts) {
  poet_reset(p);
  if (!poet_is_exact()) {
    return POET_ERROR_inexact;
  }
  TRY(poet_ready(p));
  poet_forget(p, 0); /* check the blocks on storage, not cached copies */
  poet_clear_bitmap(p);
  TRY(poet_validate(p, model_bytes, plan_bytes));
#if POET_LIBRARY
  TRY(poet_lay_out(p));
#endif
  p->loaded = true;
  *facts = (struct poet_facts){p->plan.statement_count, p->decoder.peak_bytes,
                               p->decoder.resident_max, p->decoder.queue_max};
  if (!poet_committed(p)) {
    return 0;
  }
  if (!poet_is_forward(p)) {
    TRY(check_digest(p));
  }
  /* Damaged weights are not in RAM afterwards: the host may write others. */
  const int error = poet_in_ram(p) || poet_is_forward(p) ? poet_restore(p) : 0;
  return error == POET_ERROR_page_damaged ? 0 : error;
}

int poet_load(struct poet *p, uint32_t model_bytes, uint32_t plan_bytes,
              struct poet_facts *facts) {
#if !POET_CARDS
  (void)model_bytes, (void)plan_bytes, (void)facts;
  return poet_fail(p, POET_ERROR_no_schedule, 0);
#else
#if POET_LIBRARY
  p->program = NULL;
  if (!poet_is_card(p)) { /* the mount must look for a card */
    p->storage_status = POET_ERROR_no_storage;
  }
#endif
  return load(p, model_bytes, plan_bytes, facts);
#endif
}

#if POET_LIBRARY
int poet_load_program(struct poet *p, const struct poet_program *program,
                      struct poet_facts *facts) {
  p->program = program;
  return load(p, program->model_bytes, program->plan_bytes, facts);
}
#endif

void poet_init(struct poet *p, const struct poet_port *port,
               const struct poet_memory *memory) {
  memset(p, 0, sizeof *p);
  p->port = port;
  p->memory = *memory;
  p->storage_status = POET_ERROR_no_storage;
  p->committed.now.step = POET_NO_STEP;
  p->dirty_bytes = memory->arena_bytes;
  poet_forget(p, 0);
#if POET_LIBRARY
  for (uint32_t i = 0; i < memory->cache_blocks; i++) {
    memory->cache[i].owner = p;
  }
#endif
  poet_reset(p);
}

/* Copy at most 16 characters. The other bytes of the field stay 0. */
static void copy_text(char *to, const char *from) {
  for (uint32_t i = 0; (!POET_LIBRARY || from) && i < 16 && from[i]; i++) {
    to[i] = from[i];
  }
}

/* A chip always has its flash. Until it holds a model, the host learns that
 * there is no card. */
static int16_t storage_status(const struct poet *p) {
  return !p->storage_status && poet_is_flash(p) &&
                 p->committed.now.step == POET_NO_STEP
             ? POET_ERROR_no_storage
             : p->storage_status;
}

void poet_describe(struct poet *p, struct poet_hello *hello) {
  poet_ignore(poet_ready(p)); /* storage_status has the error */
  *hello = (struct poet_hello){
      .version = POET_VERSION,
      .storage_status = storage_status(p),
      .fingerprint = poet_fingerprint(),
      .arena_bytes = p->memory.arena_bytes,
      .tick_hz = p->port->tick_hz,
      .storage_blocks = p->partition_blocks,
      .committed_step = p->committed.now.step,
      .committed_model = p->committed.model_crc,
      .loaded_plan = p->loaded ? p->plan.crc : 0,
      .resident_capacity = p->memory.resident_capacity,
      .tensor_capacity = p->memory.tensor_capacity,
      .queue_capacity = p->memory.queue_capacity,
      .trace_capacity = p->memory.trace_capacity,
      .allocation_mib = (uint8_t)poet_allocation_mib(p->port),
      .kernels = {(uint32_t)POET_KERNELS, (uint32_t)(POET_KERNELS >> 32),
                  (uint32_t)POET_MORE_KERNELS,
                  (uint32_t)(POET_MORE_KERNELS >> 32)},
  };
  if (!p->storage_status || p->storage_status == POET_ERROR_storage_version) {
    hello->storage_version = (uint8_t)p->store.version;
  }
  copy_text(hello->board, p->port->board);
  copy_text(hello->unique_id, p->port->unique_id);
}
