/*
 * computing.c - decodes the statements that compute a tensor: in one call of a
 * kernel, or as a nest.
 *
 * State: op, and that of the decoder (decoder.c).
 */
#include <stddef.h>
#include <string.h>

#include "plan.h"

/* Bytes of the fields n to groups. */
#define SIZES_BYTES                                                            \
  (offsetof(struct poet_op, learning_rate) - offsetof(struct poet_op, n))

/* Check that input `i` of p->op is in RAM, has arrived, and has the size that
 * the kernel reads. An input that the output overwrites must not have any
 * unfinished transfer. */
static POET_CHECKED int check_input(struct poet *p, struct poet_statement *s,
                                    uint32_t i) {
  const uint32_t index = poet_find(p, p->op.input[i]);
  if (index == p->decoder.resident_count ||
      poet_in_flight(p, p->op.input[i], p->op.input[i] != p->op.overwrites)) {
    return poet_refuse(p);
  }
  const struct poet_resident *resident = &p->memory.residents[index];
  if (resident->size_bytes != poet_operand_bytes(&p->op, i)) {
    return poet_fail(p, POET_ERROR_bad_table, p->op.output);
  }
  s->input[i] = resident->offset;
  return 0;
}

static bool is_streamed(const struct poet_statement *s, uint32_t i) {
  return POET_STREAMS && s->code == POET_STATEMENT_stream &&
         s->nest.ring[i].slots;
}

/* Place the input gradient of a pair, or note that it is on storage. Place
 * statistics. */
static POET_CHECKED int place_other(struct poet *p, struct poet_statement *s) {
  const uint16_t tensor = (uint16_t)(s->tensor + s->nest.statistics * 2 - 1);
  struct poet_tensor record;
  const uint32_t i = p->op.input_count + 1u;
  if (s->nest.statistics || !is_streamed(s, i)) {
    return poet_place(p, tensor, poet_other_bytes(p, &s->nest), &s->input[i]);
  }
  TRY(poet_read_tensor(p, tensor, &record));
  if (record.place != POET_PLACE_PAGE || poet_in_ram(p)) {
    return poet_refuse(p);
  }
  poet_put_on_storage(p, tensor, record.flags);
  return 0;
}

/* Give the output the memory of a tensor in RAM. */
static POET_CHECKED int overwrite(struct poet *p, struct poet_statement *s,
                                  uint16_t tensor) {
  struct poet_resident *resident = &p->memory.residents[poet_find(p, tensor)];
  if (resident->size_bytes != s->size_bytes) {
    return poet_fail(p, POET_ERROR_bad_table, s->tensor);
  }
  resident->tensor = s->tensor;
  s->offset = resident->offset;
  return 0;
}

/* Return the index of the input that the output overwrites because the plan
 * puts it there, or NO_OPERAND. The input is a computed tensor of the output's
 * size, and occurs once. */
static uint32_t overwritten(struct poet *p, const struct poet_statement *s) {
  uint32_t over = POET_NO_OPERAND, count = 0;
  for (uint32_t i = 0; i < p->op.input_count; i++) {
    if (!is_streamed(s, i) && s->input[i] == s->offset) {
      over = i;
      count++;
    }
  }
  return count == 1 && p->op.overwrites == POET_NONE &&
                 poet_may_overwrite(&p->op, over) &&
                 p->op.input[over] >= p->model.stored_count &&
                 poet_operand_bytes(&p->op, over) == s->size_bytes &&
                 !poet_in_flight(p, p->op.input[over], false)
             ? over
             : POET_NO_OPERAND;
}

/* Place an output whose operator does not always overwrite the same input. A
 * nest with the index of the overwritten input is checked again: both must be
 * cut into the same parts. */
static POET_CHECKED int place_freely(struct poet *p, struct poet_statement *s) {
  uint32_t bytes;
  TRY(poet_take_place(p, s->size_bytes, &s->offset));
  const uint32_t over = overwritten(p, s);
  if (over == POET_NO_OPERAND) {
    return poet_insert(p, s->tensor, s->offset, s->size_bytes);
  }
  TRY(overwrite(p, s, p->op.input[over]));
  s->nest.over = (uint8_t)over;
  return POET_STREAMS && s->code == POET_STATEMENT_stream
             ? poet_nest_bytes(p, &s->nest, &bytes)
             : 0;
}

/* Place workspace and outputs in the arena. The workspace is in the list of
 * residents while the outputs are placed, so that they cannot overlap. Then the
 * workspace is removed from the list. */
static POET_CHECKED int place_output(struct poet *p, struct poet_statement *s) {
  const bool overwrites = POET_STREAMS && s->code == POET_STATEMENT_stream
                              ? s->nest.over != POET_NO_OPERAND
                              : p->op.overwrites != POET_NONE;
  s->workspace = 0;
  if (s->workspace_bytes) {
    TRY(poet_place(p, POET_NONE, s->workspace_bytes, &s->workspace));
  }
  if (is_streamed(s, p->op.input_count)) {
    s->offset = s->size_bytes = 0;
  } else if (!overwrites) {
    TRY(place_freely(p, s));
  } else {
    TRY(overwrite(p, s, p->op.overwrites));
  }
  if (POET_STREAMS && (s->nest.pair || s->nest.statistics)) {
    TRY(place_other(p, s));
  }
  if (s->workspace_bytes) {
    poet_drop(p, poet_find(p, POET_NONE));
  }
  return 0;
}

static bool first_appearance(const struct poet_op *op, uint32_t i) {
  for (uint32_t j = 0; j < i; j++) {
    if (op->input[j] == op->input[i]) {
      return false;
    }
  }
  return true;
}

/* Read which tensors the next statements free: one bit for each input, then one
 * bit for the output. An input that occurs twice has one bit. An overwritten
 * input and operands that stream have no bit. */
static POET_CHECKED int take_frees(struct poet *p,
                                   const struct poet_statement *s) {
  uint32_t bit, frees = 0;
  for (uint32_t i = 0; i <= p->op.input_count; i++) {
    const bool is_output = i == p->op.input_count;
    if (is_streamed(s, i) ||
        (!is_output && (!first_appearance(&p->op, i) ||
                        !poet_is_resident(p, p->op.input[i])))) {
      continue;
    }
    TRY(poet_take_bits(p, 1, &bit));
    frees |= bit << (is_output ? POET_OUTPUT_BIT : i);
  }
  p->decoder.frees = (uint16_t)frees;
  return 0;
}

/* Compare the record of the output tensor with p->op, the operator that
 * computes it. */
static POET_CHECKED int check_output(struct poet *p, struct poet_statement *s,
                                     bool again) {
  TRY(poet_read_tensor(p, s->tensor, &s->record));
  if (again && (s->record.flags & POET_FLAG_ONCE)) {
    return poet_refuse(p);
  }
  return s->record.size_bytes == s->size_bytes
             ? 0
             : poet_fail(p, POET_ERROR_bad_table, s->tensor);
}

/* A kernel that is called once reads and writes tensors in row-major order. */
static POET_CHECKED int check_orders(struct poet *p) {
  struct poet_tensor tensor;
  struct poet_pieces pieces;
  for (uint32_t i = 0; i <= p->op.input_count; i++) {
    const uint32_t number =
        i < p->op.input_count ? p->op.input[i] : p->op.output;
    TRY(poet_read_tensor(p, number, &tensor));
    if (tensor.cut) {
      TRY(poet_read_pieces(p, &tensor, &pieces));
      if (!poet_is_row_major(&pieces.cut)) {
        return poet_refuse(p);
      }
    }
  }
  return 0;
}

bool poet_is_stored(const struct poet *p, const struct poet_tensor *record,
                    uint32_t tensor) {
  return poet_on_storage(p, tensor) && record->place != POET_PLACE_NONE;
}

/* Operands that stream are on storage. A tensor that is several operands
 * streams as all of them, or as none. */
static POET_CHECKED int check_operands(struct poet *p,
                                       struct poet_statement *s) {
  struct poet_tensor record;
  for (uint32_t i = 0; i < p->op.input_count; i++) {
    for (uint32_t j = 0; j < i; j++) {
      if (p->op.input[i] == p->op.input[j] &&
          is_streamed(s, i) != is_streamed(s, j)) {
        return poet_refuse(p);
      }
    }
    if (!is_streamed(s, i)) {
      TRY(check_input(p, s, i));
      continue;
    }
    TRY(poet_read_tensor(p, p->op.input[i], &record));
    p->reads_batch |= record.place == POET_PLACE_INPUT;
    if (!poet_is_stored(p, &record, p->op.input[i]) ||
        (i == s->nest.over && poet_is_resident(p, p->op.input[i]))) {
      return poet_refuse(p);
    }
  }
  const uint8_t place = s->record.place;
  return is_streamed(s, p->op.input_count) &&
                 (s->loss || poet_in_ram(p) ||
                  (place != POET_PLACE_PAGE && place != POET_PLACE_NEXT))
             ? poet_refuse(p)
             : 0;
}

/* Compare `op`, which computes `tensor`, with the operator before it: both are
 * gradients of one operator, and `op` renews the weight that the other reads.
 */
__attribute__((noinline)) static POET_CHECKED int
check_pair(struct poet *p, const struct poet_op *op, uint32_t tensor) {
  struct poet_op first;
  TRY(poet_read_op(p, tensor - 1, &first));
  return (op->kernel == POET_KERNEL_conv2d_grad_weight ||
          op->kernel == POET_KERNEL_linear_grad_weight) &&
                 first.kernel + 1 == op->kernel && op->sink == POET_SINK_sgd &&
                 !memcmp(first.input, op->input + 1, 2 * sizeof *op->input) &&
                 !memcmp(&first.n, &op->n, SIZES_BYTES)
             ? 0
             : poet_refuse(p);
}

/* Replace p->op, which computes the statistics `tensor`, by the operator before
 * it: it must be the convolution whose output they describe. */
__attribute__((noinline)) static POET_CHECKED int
check_statistics(struct poet *p, uint32_t tensor) {
  struct poet_op *op = &p->op;
  struct poet_tensor record;
  const uint32_t n = op->n, c = op->c, h = op->h, w = op->w;
  const bool follows = op->input[0] == tensor - 1;
  TRY(poet_read_tensor(p, tensor, &record));
  TRY(poet_read_op(p, tensor - 1, op));
  return follows && op->kernel == POET_KERNEL_conv2d && op->n == n &&
                 op->k == c && op->oh == h && op->ow == w &&
                 !(record.flags & POET_FLAG_ONCE) &&
                 !poet_is_resident(p, tensor - 1)
             ? 0
             : poet_refuse(p);
}

int poet_decode_computation(struct poet *p, struct poet_statement *s,
                            uint8_t code, uint32_t tensor, bool again) {
  const bool streams = POET_STREAMS && code == POET_STATEMENT_stream;
  if (poet_is_resident(p, tensor)) {
    return poet_refuse(p);
  }
  TRY(poet_read_op(p, tensor, &p->op));
  if (POET_STREAMS && s->nest.pair &&
      p->op.kernel == POET_KERNEL_batchnorm_stats) {
    TRY(check_statistics(p, tensor--));
    s->nest.pair = 0;
    s->nest.statistics = 1;
  } else if (POET_STREAMS && s->nest.pair) {
    TRY(again ? poet_refuse(p) : check_pair(p, &p->op, tensor));
  }
  s->code = code;
  s->tensor = (uint16_t)tensor;
  s->size_bytes = poet_operand_bytes(&p->op, p->op.input_count);
  s->workspace_bytes = p->op.workspace_bytes;
  s->loss = tensor == p->loss;
  s->renews = false;
  /* These checks, which read the records of tensors, run only while a schedule
   * is loaded. A step takes the size from the operator's record, which was
   * checked when it was read. */
  if (!p->loaded || streams) {
    TRY(check_output(p, s, again));
  }
  if (streams) {
    p->decoder.finished = p->decoder.queued; /* it waits for all transfers */
    TRY(poet_take_nest(p, &s->nest));
    TRY(poet_nest_bytes(p, &s->nest, &s->workspace_bytes));
  } else if (!p->loaded) {
    TRY(check_orders(p));
  }
  TRY(check_operands(p, s));
  TRY(place_output(p, s));
  TRY(take_frees(p, s));
  p->decoder.last_output = s->tensor;
  if (is_streamed(s, p->op.input_count)) {
    TRY(poet_check_slots(p, &s->record));
    s->renews =
        s->record.place == POET_PLACE_NEXT && !poet_on_storage(p, s->tensor);
    poet_put_on_storage(p, s->tensor, s->record.flags);
  }
  return 0;
}
