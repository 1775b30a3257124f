/*
 * pager.c - transfers of tensors, piece by piece: queue, trailers, completion.
 *
 * State: memory.queue, a ring of transfers, and three counts in struct poet:
 *
 *   retired <= submitted      transfers, of which each moves one piece
 *   completed                 tensors whose last piece is retired
 *
 * poet_page fills in the entry `submitted` for each piece and submits it. From
 * then on, the entry belongs to the port until the port ends it. Then
 * poet_retire checks the entry's result. If the ring is full, poet_page retires
 * the oldest entry first. The decoder refuses a plan with more unfinished
 * tensors than entries, so this happens only if a tensor has several pieces.
 *
 * The trailer of a tensor with one piece moves together with its last block.
 * The trailers of several pieces are in blocks of their own. poet_retire reads
 * and writes these through the cache, and writes a block when it is complete.
 *
 * The port reads blocks that tensors share, but does not write them:
 * poet_retire writes the tensors through the cache, so that one access to the
 * card can write several.
 */
#include <string.h>

#include "plan.h"

uint32_t poet_transfer_blocks(const struct poet_transfer *transfer) {
  return transfer->apart ? (transfer->size_bytes + POET_BLOCK - 1) / POET_BLOCK
                         : poet_tensor_blocks(transfer->size_bytes);
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
  if (!transfer->apart && index + 1 == poet_transfer_blocks(transfer)) {
    memcpy(bounce + POET_BLOCK - POET_TRAILER, transfer->trailer, POET_TRAILER);
  }
}

void poet_transfer_take(struct poet_transfer *transfer, uint32_t index,
                        const uint8_t *bounce) {
  const uint32_t size = rest(transfer, index);
  bounce += 4 * transfer->first_word;
  memcpy(transfer->data + transfer->size_bytes - size, bounce, size);
  if (!transfer->apart && index + 1 == poet_transfer_blocks(transfer)) {
    const uint32_t at = transfer->shared ? size : POET_BLOCK - POET_TRAILER;
    uint32_t found[2];
    memcpy(found, bounce + at, sizeof found);
    transfer->trailer[0] = found[0];
    if (found[1] != transfer->trailer[1]) {
      transfer->status = POET_ERROR_page_damaged;
    }
  }
}

void poet_transfer_check(struct poet_transfer *transfer, uint32_t crc,
                         uint32_t done) {
  crc = poet_crc(crc, transfer->data + done, transfer->size_bytes - done);
  if (transfer->write || transfer->apart) {
    transfer->trailer[0] = crc;
  } else if (!transfer->status && transfer->trailer[0] != crc) {
    transfer->status = POET_ERROR_page_damaged;
  }
}

/* Move the blocks from `first` to before `end`. */
static void move_blocks(const struct poet_port *port,
                        struct poet_transfer *transfer, uint32_t first,
                        uint32_t end, uint8_t *bounce) {
  const uint32_t whole = poet_transfer_whole(transfer);
  int error = 0;
  if (first < whole) {
    const uint32_t block = transfer->block + first;
    const uint32_t count = (end < whole ? end : whole) - first;
    uint8_t *data = transfer->data + first * POET_BLOCK;
    error = transfer->write ? port->write(port->context, block, data, count)
                            : port->read(port->context, block, data, count);
  }
  for (uint32_t i = first < whole ? whole : first; i < end && !error; i++) {
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
  if (error) {
    transfer->status = POET_ERROR_storage_failed;
  }
}

/* Run a transfer from block `first` to before `end`. */
static void run_part(const struct poet_port *port,
                     struct poet_transfer *transfer, uint32_t first,
                     uint32_t end, uint8_t *bounce) {
  if (!first) {
    transfer->begin = poet_ticks(port);
    if (port->lane_checks && transfer->write) {
      poet_transfer_check(transfer, 0, 0);
    }
  }
  move_blocks(port, transfer, first, end, bounce);
  if (end < poet_transfer_blocks(transfer) &&
      transfer->status != POET_ERROR_storage_failed) {
    return;
  }
  if (port->lane_checks && !transfer->write) {
    poet_transfer_check(transfer, 0, 0);
  }
  transfer->end = poet_ticks(port);
  poet_transfer_end(transfer);
}

void poet_transfer_run(const struct poet_port *port,
                       struct poet_transfer *transfer, uint8_t *bounce) {
  run_part(port, transfer, 0, poet_transfer_blocks(transfer), bounce);
}

#if POET_LIBRARY
/* Without a transfer lane, transfers run here, in the order of submission: as
 * a whole, or block by block. */
static POET_CHECKED int run_oldest(struct poet *p) {
  uint32_t number = p->retired;
  while (poet_transfer_has_ended(poet_queue_slot(p, number))) {
    number++;
  }
  struct poet_transfer *transfer = poet_queue_slot(p, number);
  const uint32_t first = p->slices.blocks;
  const uint32_t end =
      p->slices.is_sliced ? first + 1 : poet_transfer_blocks(transfer);
  uint8_t *bounce;
  if (poet_bounce(p, &bounce)) {
    transfer->begin = transfer->end = poet_ticks(p->port);
    transfer->status = POET_ERROR_storage_failed;
    poet_transfer_end(transfer);
  } else {
    run_part(p->port, transfer, first, end, bounce);
  }
  p->slices.blocks = poet_transfer_has_ended(transfer) ? 0 : end;
  return poet_must_pause(p) ? POET_BUSY : 0;
}
#endif

static POET_CHECKED int await(struct poet *p, struct poet_transfer *transfer) {
  while (!poet_transfer_has_ended(transfer)) {
    if (poet_asked_to_stop(p)) {
      return POET_ERROR_stopped;
    }
#if POET_LIBRARY
    if (!p->port->submit) {
      TRY(run_oldest(p));
      continue;
    }
    if (p->slices.is_sliced) {
      return POET_BUSY;
    }
#endif
    poet_idle(p->port);
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
  transfer->done = 0;
  if (POET_HAS(p->port, submit)) {
    p->port->submit(p->port->context, transfer);
  }
}

/* Read the record of the next operator into the cache before the transfer
 * starts. A later read would have to wait for the transfer. */
static POET_CHECKED int read_ahead(struct poet *p) {
  const uint16_t next = p->decoder.next_operator;
  const bool idle =
      p->submitted == p->retired ||
      poet_transfer_has_ended(poet_queue_slot(p, p->submitted - 1));
  return idle && next < p->model.tensor_count ? poet_fetch_op(p, next) : 0;
}

/* Compare the CRC of an arrived piece with its trailer, or write the trailer of
 * a piece that is on storage now. */
static POET_CHECKED int check_apart(struct poet *p,
                                    struct poet_transfer *transfer) {
  const uint32_t block = transfer->trailer_place / POET_IN_BLOCK;
  const uint32_t offset =
      transfer->trailer_place % POET_IN_BLOCK * POET_TRAILER;
  uint32_t trailer[2];
  if (transfer->write) {
    TRY(poet_put_later(p, block, offset, transfer->trailer, sizeof trailer));
    return transfer->last ? poet_settle(p) : 0;
  }
  TRY(poet_get(p, block, offset, trailer, sizeof trailer));
  if (memcmp(trailer, transfer->trailer, sizeof trailer) != 0) {
    transfer->status = POET_ERROR_page_damaged;
  }
  return 0;
}

/* Put a tensor and its trailer into the cached block that it shares. The plan
 * does not count accesses to this block: they are a part of the commit. */
static POET_CHECKED int write_shared(struct poet *p,
                                     struct poet_transfer *transfer) {
  const uint32_t block = transfer->block; /* of the partition */
  const uint32_t at = 4u * transfer->first_word;
  struct poet_usage before;
  poet_usage(p->port, &before);
  const uint32_t begin = poet_ticks(p->port);
  poet_transfer_check(transfer, 0, 0);
  TRY(poet_put_later(p, block, at, transfer->data, transfer->size_bytes));
  TRY(poet_put_later(p, block, at + transfer->size_bytes, transfer->trailer,
                     sizeof transfer->trailer));
  p->result.commit_ticks += poet_ticks(p->port) - begin;
  poet_count_overhead(p, &before);
  return 0;
}

int poet_judge(struct poet *p, struct poet_transfer *transfer) {
  if (transfer->write && transfer->shared) {
    TRY(write_shared(p, transfer));
  } else if (!transfer->write && !p->port->lane_checks) {
    poet_transfer_check(transfer, 0, 0);
  }
  if (transfer->status == POET_ERROR_storage_failed) {
    p->storage_status = transfer->status; /* mount again: may be a new card */
  }
  if (transfer->apart && !transfer->status) {
    TRY(check_apart(p, transfer));
  }
  if (transfer->renews) {
    p->digest ^= poet_crc(0, transfer->trailer, sizeof transfer->trailer);
  }
  return transfer->status ? poet_fail(p, transfer->status, transfer->tensor)
                          : 0;
}

static POET_CHECKED int retire_next(struct poet *p) {
  struct poet_transfer *transfer = poet_queue_slot(p, p->retired);
  TRY(await(p, transfer));
  p->retired++;
  p->completed += transfer->last;
  p->result.transfer_ticks += transfer->end - transfer->begin;
  if (!transfer->nested) {
    poet_trace(p, transfer->statement,
               transfer->write ? POET_STATEMENT_page_out
                               : POET_STATEMENT_page_in,
               transfer->begin, transfer->end);
  }
  return poet_judge(p, transfer);
}

/* A full ring may have completed more than `until` already. */
int poet_retire(struct poet *p, uint32_t until) {
  while ((int32_t)(until - p->completed) > 0) {
    TRY(retire_next(p));
  }
  return 0;
}

int poet_retire_transfer(struct poet *p, uint32_t number) {
  while ((int32_t)(p->retired - number) <= 0) {
    TRY(retire_next(p));
  }
  return 0;
}

int poet_has_room(struct poet *p, bool *room) {
  while (p->retired != p->submitted &&
         poet_transfer_has_ended(poet_queue_slot(p, p->retired))) {
    TRY(retire_next(p));
  }
  *room = p->submitted - p->retired < p->memory.queue_capacity;
  return 0;
}

int poet_submit_piece(struct poet *p, const struct poet_piece *piece,
                      const struct poet_move *move) {
  if (p->submitted - p->retired == p->memory.queue_capacity) {
    TRY(retire_next(p));
  }
  struct poet_transfer *transfer = poet_queue_slot(p, p->submitted);
  transfer->data = move->data;
  transfer->size_bytes = piece->size_bytes;
  transfer->block = piece->block;
  transfer->trailer[0] = 0;
  transfer->trailer[1] = piece->owner;
  transfer->trailer_place = piece->trailer_block * POET_IN_BLOCK +
                            piece->trailer_offset / POET_TRAILER;
  transfer->statement = (uint16_t)move->statement;
  transfer->tensor = move->tensor;
  transfer->write = move->write;
  transfer->renews = move->renews;
  transfer->apart = piece->apart;
  transfer->shared = piece->shared;
  transfer->first_word = (uint8_t)(piece->at / 4);
  transfer->last = move->last;
  transfer->nested = move->nested;
  if (transfer->write && transfer->shared) {
    transfer->begin = transfer->end = poet_ticks(p->port);
    transfer->status = 0;
    poet_transfer_end(transfer);
  } else {
    transfer->block = poet_storage_block(p, piece->block);
    poet_submit(p, transfer);
  }
  p->submitted++;
  return 0;
}

int poet_page(struct poet *p, const struct poet_statement *s) {
  struct poet_pieces pieces;
  struct poet_piece piece;
  struct poet_move move = {.statement = s->index,
                           .tensor = s->tensor,
                           .write = s->code == POET_STATEMENT_page_out,
                           .renews = s->renews};
  /* The card must have what this step has written to a shared block. */
  if ((s->record.flags & POET_FLAG_SHARED) &&
      s->record.place == POET_PLACE_NEXT && !move.write && !poet_cursor(p)) {
    TRY(poet_retire_transfer(p, p->submitted - 1));
    TRY(poet_settle(p));
  }
  /* Without lane_checks, poet_submit computes the CRC of the tensor now, so an
   * earlier page_in of the same tensor must have arrived. With lane_checks, the
   * lane computes the CRCs in the order of the transfers. */
  if (move.write && !p->port->lane_checks && !poet_cursor(p)) {
    for (uint32_t i = p->retired; i != p->submitted; i++) {
      struct poet_transfer *before = poet_queue_slot(p, i);
      if (before->tensor == s->tensor) {
        TRY(await(p, before));
      }
    }
  }
  TRY(poet_read_pieces(p, &s->record, &pieces));
  /* If storage returns another cut than before, sizes may differ. */
  if (s->record.size_bytes != s->size_bytes) {
    return poet_fail(p, POET_ERROR_bad_table, s->tensor);
  }
  for (uint32_t i = poet_cursor(p); i < pieces.count; i++) {
    TRY(read_ahead(p));
    poet_piece(p, &s->record, &pieces, i, false, &piece);
    move.data = p->memory.arena + s->offset + piece.offset;
    move.last = i + 1 == pieces.count;
    TRY(poet_submit_piece(p, &piece, &move));
    if (poet_pauses_at(p, i + 1) && !move.last) {
      return POET_BUSY;
    }
  }
  return 0;
}
