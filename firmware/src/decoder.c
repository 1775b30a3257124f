/*
 * decoder.c - one pass over the plan, statement by statement. It decodes each
 * statement and checks that the statement obeys the rules of FORMAT.md.
 *
 * Interface:
 * - poet_decode_start sets the decoder to the start of the plan, after the
 *   homes: the places of the stored tensors that are in RAM at the start.
 * - poet_decode returns the next statement, or an error if the statement breaks
 *   a rule. poet_load only decodes. poet_step also executes each statement
 *   before it decodes the next one. The checks are the same, so both functions
 *   agree about every plan.
 *
 * State, valid from poet_decode_start to the end of the load or step:
 * - decoder: position in the bit stream, and counts.
 * - memory.residents: the tensors in RAM (arena.c).
 * - memory.bitmap: bit i is set if the content that tensor i has in this step
 *   is on storage. At the start, only bits of stored tensors are set. After
 *   `end`, that of a CURRENT tensor with a home says whether its new value is
 *   on storage, and that of an INPUT tensor with a home is clear.
 * - memory.queue, entries decoder.finished to decoder.queued - 1: transfers for
 *   whose end no `wait` statement has waited. The decoder uses only the two
 *   fields `planned_...`; the others belong to the pager.
 * - op: the operator of the last compute statement. The tensors that this
 *   statement frees follow as `free` statements.
 *
 * Memory safety does not depend on poet_load. Storage may return other bytes
 * during a step, so each pass checks offsets, sizes and records again.
 */
#include <string.h>

#include "plan.h"

/* A stored tensor and its home. */
struct home {
  uint32_t number; /* of the tensor */
  uint32_t offset, end;
  struct poet_tensor tensor;
};

/* Read the next home: of the first tensor from `number` on that has one. */
static POET_CHECKED int take_home(struct poet *p, struct home *home) {
  const bool all = p->plan.home_count == p->model.stored_count;
  uint32_t has_home = all, is_apart;
  while (!all && !has_home) {
    TRY(poet_take_bits(p, 1, &has_home));
    home->number += !has_home;
    if (home->number >= p->model.stored_count) {
      return poet_refuse(p);
    }
  }
  TRY(poet_read_tensor(p, home->number, &home->tensor));
  TRY(poet_take_bits(p, 1, &is_apart));
  home->offset = home->end;
  if (is_apart) {
    TRY(poet_take_offset(p, &home->offset));
  }
  home->end = home->offset + home->tensor.size_bytes;
  return 0;
}

/* Not inlined, so that poet_decode_homes uses less stack. */
__attribute__((noinline)) static void note_batch(struct poet *p,
                                                 const struct home *home) {
  const bool in_ram = poet_in_ram(p);
  p->holds_batch |= poet_is_batch(&home->tensor) && !in_ram;
  if (home->tensor.place == POET_PLACE_INPUT &&
      poet_on_storage(p, home->number) == in_ram) {
    p->lacks_batch = true;
    p->detail = home->number;
  }
}

/* Does not change memory.bitmap, which marks tensors between steps. */
int poet_decode_homes(struct poet *p) {
  struct home home = {0};
  memset(&p->decoder, 0, sizeof p->decoder);
  p->decoder.next_operator = p->model.stored_count;
  p->decoder.last_output = POET_NONE;
  p->holds_batch = p->lacks_batch = false;
  for (uint32_t i = 0; i < p->plan.home_count; i++, home.number++) {
    TRY(take_home(p, &home));
    TRY(poet_insert(p, (uint16_t)home.number, home.offset,
                    home.tensor.size_bytes));
    note_batch(p, &home);
  }
  return 0;
}

/* Storage has the values of the newest commit. If later steps may have renewed
 * a tensor that is in its home, its value is not on storage. An inference
 * leaves the marks of all homes: a commit writes what has none, and the next
 * step needs those of its batch. */
static POET_CHECKED int hide_old_values(struct poet *p) {
  for (uint32_t i = 0; i < p->decoder.resident_count; i++) {
    const struct poet_resident *home = &p->memory.residents[i];
    struct poet_tensor tensor;
    TRY(poet_read_tensor(p, home->tensor, &tensor));
    if (!home->on_storage &&
        (tensor.place == POET_PLACE_CURRENT
             ? p->plan.commit_every > 1
             : tensor.place == POET_PLACE_INPUT && poet_infers(p))) {
      poet_take_from_storage(p, home->tensor);
    }
  }
  return 0;
}

int poet_decode_start(struct poet *p) {
  TRY(poet_decode_homes(p));
  for (uint32_t i = 0; poet_infers(p) && i < p->decoder.resident_count; i++) {
    struct poet_resident *home = &p->memory.residents[i];
    home->on_storage = poet_on_storage(p, home->tensor);
  }
  p->decoder.kept = p->kept_at_start;
  poet_begin_storage(p);
  return p->plan.commit_every > 1 || poet_infers(p) ? hide_old_values(p) : 0;
}

/* ---- statements --------------------------------------------------------- */

static POET_CHECKED int take_tensor(struct poet *p, uint32_t *tensor) {
  TRY(poet_take_bits(p, poet_bit_width(p->model.tensor_count), tensor));
  return *tensor < p->model.tensor_count ? 0 : poet_refuse(p);
}

static POET_CHECKED int next(struct poet *p, struct poet_statement *s,
                             uint8_t code) {
  const uint16_t tensor = p->decoder.next_operator;
  if (tensor >= p->model.tensor_count) {
    return poet_refuse(p);
  }
  p->decoder.next_operator++;
  return poet_decode_computation(p, s, code, tensor, false);
}

static POET_CHECKED int again(struct poet *p, struct poet_statement *s,
                              uint8_t code) {
  uint32_t tensor, end = p->decoder.next_operator, pair = 0;
  bool repeats = true;
  TRY(take_tensor(p, &tensor));
  if (code == POET_STATEMENT_stream) {
    repeats = tensor != end + 1;
    pair = !repeats || !tensor;
    if (!tensor) {
      TRY(take_tensor(p, &tensor));
    }
    end += pair + !repeats;
  }
  if (tensor < p->model.stored_count + pair || tensor >= end) {
    return poet_refuse(p);
  }
  if (tensor >= p->decoder.next_operator) {
    p->decoder.next_operator = (uint16_t)(tensor + 1);
  }
  s->nest.pair = (uint8_t)pair;
  return poet_decode_computation(p, s, code, tensor, repeats);
}

static POET_CHECKED int page_in(struct poet *p, struct poet_statement *s) {
  uint32_t tensor;
  TRY(take_tensor(p, &tensor));
  TRY(poet_read_tensor(p, tensor, &s->record));
  if (poet_is_resident(p, tensor) || !poet_is_stored(p, &s->record, tensor) ||
      !s->record.size_bytes) {
    return poet_refuse(p);
  }
  p->reads_batch |= s->record.place == POET_PLACE_INPUT;
  s->code = POET_STATEMENT_page_in;
  s->renews = false;
  s->tensor = (uint16_t)tensor;
  s->size_bytes = s->record.size_bytes;
  TRY(poet_place(p, s->tensor, s->size_bytes, &s->offset));
  return poet_enqueue(p, s->tensor, false);
}

static POET_CHECKED int page_out(struct poet *p, struct poet_statement *s,
                                 uint32_t index) {
  if (index >= p->decoder.resident_count) {
    return poet_refuse(p);
  }
  const struct poet_resident *resident = &p->memory.residents[index];
  TRY(poet_read_tensor(p, resident->tensor, &s->record));
  if (poet_in_ram(p) || (s->record.place != POET_PLACE_PAGE &&
                         s->record.place != POET_PLACE_NEXT)) {
    return poet_refuse(p);
  }
  TRY(poet_check_slots(p, &s->record));
  s->code = POET_STATEMENT_page_out;
  s->tensor = resident->tensor;
  s->offset = resident->offset;
  s->size_bytes = resident->size_bytes;
  s->renews =
      s->record.place == POET_PLACE_NEXT && !poet_on_storage(p, s->tensor);
  poet_put_on_storage(p, s->tensor, s->record.flags);
  return poet_enqueue(p, s->tensor, true);
}

static POET_CHECKED int release(struct poet *p, struct poet_statement *s,
                                uint32_t index) {
  const struct poet_resident *resident = &p->memory.residents[index];
  if (index >= p->decoder.resident_count ||
      poet_in_flight(p, resident->tensor, false)) {
    return poet_refuse(p);
  }
  s->code = POET_STATEMENT_free;
  s->tensor = resident->tensor;
  s->offset = resident->offset;
  s->size_bytes = resident->size_bytes;
  poet_drop(p, index);
  return 0;
}

/* Return the next `free` statement of those that were encoded together with the
 * last compute statement. */
static POET_CHECKED int release_next(struct poet *p, struct poet_statement *s) {
  uint32_t i = 0;
  while (!(p->decoder.frees >> i & 1)) {
    i++;
  }
  p->decoder.frees = (uint16_t)(p->decoder.frees & ~(1u << i));
  return release(
      p, s, poet_find(p, i == POET_OUTPUT_BIT ? p->op.output : p->op.input[i]));
}

static POET_CHECKED int wait(struct poet *p, struct poet_statement *s) {
  uint32_t remaining;
  TRY(poet_take_gamma(p, &remaining));
  if (remaining >= p->decoder.queued - p->decoder.finished) {
    return poet_refuse(p);
  }
  s->code = POET_STATEMENT_wait;
  p->decoder.finished = p->decoder.queued - remaining;
  return 0;
}

/* Check that the tensor of a home, or its new value, is in it. */
static POET_CHECKED int check_home(struct poet *p, const struct home *home) {
  const struct poet_resident *list = p->memory.residents;
  struct poet_tensor found;
  uint32_t i = 0;
  while (i < p->decoder.resident_count && list[i].offset != home->offset) {
    i++;
  }
  if (i == p->decoder.resident_count) {
    return poet_refuse(p);
  }
  const uint32_t number = list[i].tensor;
  TRY(poet_read_tensor(p, number, &found));
  const bool is_new = found.place == POET_PLACE_NEXT;
  const bool renewed = home->tensor.place == POET_PLACE_CURRENT &&
                       !(home->tensor.flags & POET_FLAG_KEEP) &&
                       !poet_is_forward(p);
  if (is_new != renewed || (is_new ? found.block != home->tensor.block ||
                                         found.cut != home->tensor.cut
                                   : number != home->number)) {
    return poet_refuse(p);
  }
  if (is_new && !poet_on_storage(p, number)) {
    p->decoder.kept++;
    poet_take_from_storage(p, home->number);
  } else if (!poet_in_ram(p) && !poet_infers(p)) {
    poet_put_on_storage(p, home->number, 0);
  }
  return 0;
}

/* What stays must be in its home again. Storage has a batch for one step. An
 * inference uses up its own input, but not the batch of the next step. */
static POET_CHECKED int check_homes(struct poet *p) {
  struct home home = {0};
  p->decoder.bit = p->decoder.held = 0;
  for (uint32_t i = 0; i < p->plan.home_count; i++, home.number++) {
    TRY(take_home(p, &home));
    if (home.tensor.place == POET_PLACE_NONE ||
        (home.tensor.place == POET_PLACE_INPUT && !poet_is_forward(p))) {
      poet_take_from_storage(p, home.number);
    } else {
      TRY(check_home(p, &home));
    }
  }
  return 0;
}

static POET_CHECKED int end(struct poet *p, struct poet_statement *s) {
  struct poet_decoder *d = &p->decoder;
  uint32_t filler = 0;
  const uint32_t left = p->plan.bit_bytes * 8 - d->bit;
  if (left > 7) {
    return poet_refuse(p);
  }
  TRY(poet_take_bits(p, left, &filler));
  TRY(check_homes(p));
  if (filler || d->next_operator != p->model.tensor_count ||
      d->kept != p->model.keep_count ||
      d->statement != p->plan.statement_count ||
      d->resident_max != p->plan.resident_max ||
      d->queue_max != p->plan.queue_max ||
      d->peak_bytes != p->plan.arena_bytes) {
    return poet_refuse(p);
  }
  s->code = POET_STATEMENT_end;
  d->finished = d->queued;
  return 0;
}

static POET_CHECKED int statement(struct poet *p, struct poet_statement *s) {
  uint32_t index = 0, length = 0, bit;
  s->nest.pair = s->nest.statistics = 0;
  if (p->decoder.frees) {
    return release_next(p, s);
  }
  do {
    TRY(poet_take_bits(p, 1, &bit));
    length += bit;
  } while (bit && length < 4);
  switch (length) {
  case 0:
    return next(p, s, POET_STATEMENT_compute);
  case 1:
    TRY(poet_take_bits(p, 1, &bit));
    return bit ? page_in(p, s) : again(p, s, POET_STATEMENT_compute);
  case 2:
    TRY(poet_take_bits(p, 1, &bit));
    if (!bit) {
      return page_out(p, s, poet_find(p, p->decoder.last_output));
    }
    TRY(poet_take_bits(p, 1, &bit));
    TRY(poet_take_resident(p, &index));
    return bit ? release(p, s, index) : page_out(p, s, index);
  case 3:
    return wait(p, s);
  default:
    TRY(poet_take_bits(p, 1, &bit));
    if (!bit) {
      return end(p, s);
    }
    TRY(poet_take_bits(p, 1, &bit));
    return !POET_STREAMS ? poet_refuse(p)
           : bit         ? again(p, s, POET_STATEMENT_stream)
                         : next(p, s, POET_STATEMENT_stream);
  }
}

/* Increment decoder.statement only after the statement is accepted, because
 * poet_refuse reports this index as `detail`. */
int poet_decode(struct poet *p, struct poet_statement *s) {
  TRY(statement(p, s));
  s->index = p->decoder.statement++;
  return 0;
}
