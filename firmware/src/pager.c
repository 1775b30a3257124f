/*
 * pager.c - transfers of tensors: trailers, queue, completion.
 *
 * State: memory.queue, a ring of transfers, and the counts in struct poet:
 *
 *   retired <= submitted <= decoder.queued
 *
 * The decoder fills in tensor and direction of entry `queued`. poet_page
 * completes the entry and submits it. From then on, the entry belongs to the
 * port until the port sets `done`. Then poet_retire checks the entry's result.
 *
 * An entry is reused only after poet_retire has checked it: the decoder refuses
 * a plan with more unfinished transfers than entries. The port sets `done` with
 * release order and is_done reads it with acquire order. So the data, trailer
 * and status are complete when `done` is seen.
 */
#include <string.h>

#include "runtime.h"

uint32_t poet_transfer_blocks(const struct poet_transfer *transfer) {
  return poet_tensor_blocks(transfer->size_bytes);
}

uint32_t poet_transfer_whole(const struct poet_transfer *transfer) {
  return transfer->size_bytes / POET_BLOCK;
}

/* Return the number of data bytes in block `index`, which is one of the blocks
 * that poet_transfer_whole does not count. */
static uint32_t rest(const struct poet_transfer *transfer, uint32_t index) {
  return index == poet_transfer_whole(transfer)
             ? transfer->size_bytes % POET_BLOCK
             : 0;
}

void poet_transfer_fill(const struct poet_transfer *transfer, uint32_t index,
                        uint8_t *bounce) {
  const uint32_t size = rest(transfer, index);
  memset(bounce, 0, POET_BLOCK);
  memcpy(bounce, transfer->data + transfer->size_bytes - size, size);
  if (index + 1 == poet_transfer_blocks(transfer)) {
    memcpy(bounce + POET_BLOCK - POET_TRAILER, transfer->trailer, POET_TRAILER);
  }
}

void poet_transfer_take(struct poet_transfer *transfer, uint32_t index,
                        const uint8_t *bounce) {
  const uint32_t size = rest(transfer, index);
  memcpy(transfer->data + transfer->size_bytes - size, bounce, size);
  if (index + 1 == poet_transfer_blocks(transfer)) {
    memcpy(transfer->trailer, bounce + POET_BLOCK - POET_TRAILER, POET_TRAILER);
  }
}

void poet_transfer_check(struct poet_transfer *transfer, uint32_t crc,
                         uint32_t blocks) {
  const uint32_t done = blocks * POET_BLOCK;
  crc = poet_crc(crc, transfer->data + done, transfer->size_bytes - done);
  if (transfer->write) {
    transfer->trailer[0] = crc;
    transfer->trailer[1] = transfer->owner;
  } else if (!transfer->status && (transfer->trailer[0] != crc ||
                                   transfer->trailer[1] != transfer->owner)) {
    transfer->status = POET_ERROR_page_damaged;
  }
}

static int run(const struct poet_port *port, struct poet_transfer *transfer,
               uint8_t *bounce) {
  const uint32_t whole = poet_transfer_whole(transfer);
  int error = 0;
  if (whole) {
    error =
        transfer->write
            ? port->write(port->context, transfer->block, transfer->data, whole)
            : port->read(port->context, transfer->block, transfer->data, whole);
  }
  for (uint32_t i = whole; i < poet_transfer_blocks(transfer) && !error; i++) {
    if (transfer->write) {
      poet_transfer_fill(transfer, i, bounce);
      error = port->write(port->context, transfer->block + i, bounce, 1);
    } else {
      error = port->read(port->context, transfer->block + i, bounce, 1);
      if (!error) {
        poet_transfer_take(transfer, i, bounce);
      }
    }
  }
  return error ? POET_ERROR_storage_failed : 0;
}

void poet_transfer_run(const struct poet_port *port,
                       struct poet_transfer *transfer, uint8_t *bounce) {
  transfer->begin = port->ticks(port->context);
  if (port->lane_checks && transfer->write) {
    poet_transfer_check(transfer, 0, 0);
  }
  transfer->status = (int16_t)run(port, transfer, bounce);
  if (port->lane_checks && !transfer->write) {
    poet_transfer_check(transfer, 0, 0);
  }
  transfer->end = port->ticks(port->context);
  atomic_store_explicit(&transfer->done, 1, memory_order_release);
}

struct poet_transfer *poet_queue_slot(struct poet *p, uint32_t number) {
  return &p->memory.queue[number % p->memory.queue_capacity];
}

static bool is_done(struct poet_transfer *transfer) {
  return atomic_load_explicit(&transfer->done, memory_order_acquire) != 0;
}

static int await(struct poet *p, struct poet_transfer *transfer) {
  while (!is_done(transfer)) {
    if (poet_asked_to_stop(p)) {
      return POET_ERROR_stopped;
    }
    p->port->idle(p->port->context);
  }
  return 0;
}

void poet_submit(struct poet *p, struct poet_transfer *transfer) {
  if (transfer->write && !p->port->lane_checks) {
    poet_transfer_check(transfer, 0, 0);
  }
  /* Set all fields before the call of `submit`: after it, the entry belongs to
   * the port. */
  transfer->status = 0;
  transfer->next = NULL;
  atomic_store_explicit(&transfer->done, 0, memory_order_relaxed);
  p->port->submit(p->port->context, transfer);
}

/* Read the record of the next operator into the cache before the transfer
 * starts. A later read would have to wait for the transfer. */
static int read_ahead(struct poet *p) {
  const uint16_t next = p->decoder.next_operator;
  const bool idle = p->submitted == p->retired ||
                    is_done(poet_queue_slot(p, p->submitted - 1));
  return idle && next < p->model.tensor_count ? poet_fetch_op(p, next) : 0;
}

int poet_page(struct poet *p, const struct poet_statement *statement) {
  struct poet_transfer *transfer = poet_queue_slot(p, p->submitted);
  const uint32_t blocks = poet_tensor_blocks(statement->size_bytes);
  const uint32_t block = poet_slot(p, &statement->record, poet_parity(p));
  if (block > p->store.total_blocks || blocks > p->store.total_blocks - block) {
    return poet_fail(p, POET_ERROR_bad_table, statement->tensor);
  }
  /* Without lane_checks, poet_submit computes the CRC of the tensor now, so an
   * earlier page_in of the same tensor must have arrived. With lane_checks, the
   * lane computes the CRCs in the order of the transfers. */
  if (transfer->write && !p->port->lane_checks) {
    for (uint32_t i = p->retired; i != p->submitted; i++) {
      struct poet_transfer *before = poet_queue_slot(p, i);
      if (before->tensor == transfer->tensor && await(p, before)) {
        return POET_ERROR_stopped;
      }
    }
  }
  TRY(read_ahead(p));
  transfer->data = p->memory.arena + statement->offset;
  transfer->size_bytes = statement->size_bytes;
  transfer->block = p->partition + block;
  transfer->owner = statement->record.block;
  transfer->statement = statement->index;
  poet_submit(p, transfer);
  p->submitted++;
  return 0;
}

int poet_judge(struct poet *p, struct poet_transfer *transfer) {
  if (!transfer->write && !p->port->lane_checks) {
    poet_transfer_check(transfer, 0, 0);
  }
  if (transfer->status == POET_ERROR_storage_failed) {
    p->storage_status = transfer->status; /* mount again: may be a new card */
  }
  return transfer->status ? poet_fail(p, transfer->status, transfer->tensor)
                          : 0;
}

int poet_retire(struct poet *p, uint32_t until) {
  int error = 0;
  while (p->retired != until && !error) {
    struct poet_transfer *transfer = poet_queue_slot(p, p->retired);
    error = await(p, transfer);
    if (!error) {
      p->retired++;
      p->result.transfer_ticks += transfer->end - transfer->begin;
      poet_trace(p, transfer->statement,
                 transfer->write ? POET_STATEMENT_page_out
                                 : POET_STATEMENT_page_in,
                 transfer->begin, transfer->end);
      error = poet_judge(p, transfer);
    }
  }
  return error;
}

void poet_drain(struct poet *p) {
  for (; p->retired != p->submitted; p->retired++) {
    while (!is_done(poet_queue_slot(p, p->retired))) {
      p->port->idle(p->port->context);
    }
  }
}
