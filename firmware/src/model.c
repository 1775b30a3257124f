/*
 * model.c - the model part: its records, and the rules that they must obey.
 *
 * State: model (the header), kept_at_start and loss. poet_check_model sets
 * them; they are valid while a schedule is loaded. The records of tensors and
 * operators stay on storage and are read one at a time, through the cache.
 * poet_check_model also uses memory.bitmap, which is not in use at that time.
 */
#include "poet/kernel.h"
#include "runtime.h"

uint32_t poet_job_block(uint32_t data_blocks) {
  return POET_DATA_BLOCK + (data_blocks + POET_UNIT_BLOCKS - 1) /
                               POET_UNIT_BLOCKS * POET_UNIT_BLOCKS;
}

int poet_read_tensor(struct poet *p, uint32_t number, struct poet_tensor *to) {
  return poet_get_part(p, POET_MODEL_BLOCK,
                       (uint32_t)(sizeof p->model + number * sizeof *to), to,
                       sizeof *to);
}

int poet_read_pieces(struct poet *p, const struct poet_tensor *tensor,
                     struct poet_pieces *pieces) {
  const uint32_t offset = poet_cut_offset(&p->model, tensor);
  if (offset) {
    TRY(poet_get_part(p, POET_MODEL_BLOCK, offset, &pieces->cut,
                      sizeof pieces->cut));
  }
  return poet_measure(&p->model, tensor, pieces);
}

static uint32_t op_offset(const struct poet *p, uint32_t output) {
  return (uint32_t)(sizeof p->model +
                    p->model.tensor_count * sizeof(struct poet_tensor) +
                    (output - p->model.stored_count) * sizeof(struct poet_op));
}

int poet_fetch_op(struct poet *p, uint32_t output) {
  return poet_get_part(p, POET_MODEL_BLOCK, op_offset(p, output), NULL,
                       sizeof(struct poet_op));
}

/* Check the rules of an operator's record that do not depend on the records of
 * tensors. */
static bool op_is_sound(const struct poet_op *op, uint32_t output) {
  if (op->output != output || !poet_operand_bytes(op, op->input_count)) {
    return false;
  }
  for (uint32_t i = 0; i < POET_INPUTS; i++) {
    if (i < op->input_count ? op->input[i] >= output
                            : op->input[i] != POET_NONE) {
      return false;
    }
  }
  return true;
}

/* The record is checked at every read, not only at load: memory safety must not
 * depend on the card returning the same bytes twice. */
int poet_read_op(struct poet *p, uint32_t output, struct poet_op *to) {
  TRY(poet_get_part(p, POET_MODEL_BLOCK, op_offset(p, output), to, sizeof *to));
  if (p->model.rate_count) {
    to->learning_rate *= p->factor;
  }
  if (!op_is_sound(to, output)) {
    return poet_fail(p, POET_ERROR_bad_table, output);
  }
  return POET_HAS_KERNEL(to->kernel)
             ? 0
             : poet_fail(p, POET_ERROR_no_kernel, to->kernel);
}

/* Return the offset in the model part of the bytes after the tables of tensors,
 * operators and cuts. */
static uint32_t rates_offset(const struct poet *p) {
  return (uint32_t)(op_offset(p, p->model.tensor_count) +
                    p->model.cut_count * sizeof(struct poet_cut));
}

int poet_set_factor(struct poet *p, uint32_t step) {
  struct poet_rate rate = {0};
  uint32_t done = step - 1, at = rates_offset(p);
  for (uint32_t i = p->model.rate_count; i; i--, at += sizeof rate) {
    TRY(poet_get_part(p, POET_MODEL_BLOCK, at, &rate, sizeof rate));
    if (done < rate.steps) {
      break;
    }
    done -= rate.steps;
  }
  p->factor = rate.start;
  if (rate.curve != POET_CURVE_CONSTANT) {
    const float steps = (float)rate.steps;
    float from = (float)(rate.steps - done) / steps, to = (float)done / steps;
    if (rate.curve == POET_CURVE_COSINE) {
      from = poet_half_wave(from);
      to = poet_half_wave(to);
    }
    p->factor = rate.start * from + rate.end * to;
  }
  return 0;
}

bool poet_is_due(struct poet_op *op, uint32_t *step) {
  if (!op->period || !poet_must_overwrite(op)) {
    return true;
  }
  const uint32_t number = *step % op->period;
  if (op->sink != POET_SINK_accumulate) {
    *step /= op->period;
    return !number;
  }
  if (number == 1) {
    op->sink = POET_SINK_store;
  }
  return true;
}

/* For each area of FORMAT.md, the end of the slots that were checked so far.
 * The slots of an area must lie in the order of the records. So one number for
 * each area is enough to show that no two slots overlap. */
struct layout {
  uint32_t stored_end; /* end of the first slots */
  uint32_t last_end;   /* end of the last slots */
  uint32_t page_begin; /* first block of a page; 0: no page yet */
  uint32_t page_end;   /* end of the pages */
  uint32_t shared_block;
  uint32_t shared_end; /* bytes of that block; 0: no shared block yet */
  uint32_t read_end;   /* end of the shared blocks of a forward program */
  uint32_t current_count;
  uint32_t next_count;
  uint32_t keep_count;
};

/* Move `end` to the end of the given blocks. Return false if the blocks overlap
 * earlier ones or exceed `limit`. */
static bool range_is_free(uint32_t *end, uint32_t block, uint32_t blocks,
                          uint32_t limit) {
  if (block < *end || block > limit || blocks > limit - block) {
    return false;
  }
  *end = block + blocks;
  return true;
}

static uint32_t first_end(const struct poet_model *model) {
  return model->slot_stride < model->data_blocks ? model->slot_stride
                                                 : model->data_blocks;
}

static bool slots_are_free(const struct poet_model *model,
                           struct layout *layout, uint32_t block,
                           uint32_t blocks) {
  const uint32_t stride = model->slot_stride;
  if (!range_is_free(&layout->stored_end, block, blocks, first_end(model)) ||
      stride > model->data_blocks / (poet_slots(model) - 1) ||
      block > model->data_blocks - (poet_slots(model) - 1) * stride) {
    return false;
  }
  layout->last_end = block + (poet_slots(model) - 1) * stride;
  return range_is_free(&layout->last_end, layout->last_end, blocks,
                       model->data_blocks);
}

/* Shared blocks lie after all other slots, in the order of the NEXT tensors.
 * The renewed CURRENT tensors have the same places. */
static bool share_is_free(const struct poet_model *model, struct layout *layout,
                          const struct poet_tensor *tensor) {
  if (!layout->shared_end || tensor->block != layout->shared_block) {
    if (!slots_are_free(model, layout, tensor->block, 1)) {
      return false;
    }
    layout->shared_block = tensor->block;
    layout->shared_end = 0;
  }
  if (tensor->at < layout->shared_end) {
    return false;
  }
  layout->shared_end = tensor->at + tensor->size_bytes + POET_TRAILER;
  return true;
}

static bool tensor_is_sound(struct poet *p, struct layout *layout, uint32_t i,
                            const struct poet_tensor *tensor, uint32_t blocks) {
  const struct poet_model *model = &p->model;
  const bool stored = i < model->stored_count;
  const bool shared = (tensor->flags & POET_FLAG_SHARED) != 0;
  const bool in_ram = poet_in_ram(p), forward = poet_is_forward(p);
  const unsigned known = POET_FLAG_STORED | POET_FLAG_KEEP | POET_FLAG_ONCE |
                         POET_FLAG_LOSS | POET_FLAG_SHARED;
  if (tensor->size_bytes == 0 || tensor->size_bytes % 4 ||
      (tensor->flags & ~known) ||
      (shared && tensor->place != POET_PLACE_CURRENT &&
       tensor->place != POET_PLACE_NEXT) ||
      stored != ((tensor->flags & POET_FLAG_STORED) != 0)) {
    return false;
  }
  if (tensor->flags & POET_FLAG_KEEP) {
    layout->keep_count++;
    p->kept_at_start = (uint16_t)(p->kept_at_start + stored);
  }
  if (tensor->flags & POET_FLAG_LOSS) {
    p->loss = (uint16_t)i;
  }
  switch (tensor->place) {
  case POET_PLACE_NONE:
    return !(tensor->flags & POET_FLAG_KEEP) && (!stored || forward);
  case POET_PLACE_FIXED:
    return stored && !in_ram &&
           range_is_free(&layout->stored_end, tensor->block, blocks,
                         first_end(model));
  case POET_PLACE_CURRENT:
  case POET_PLACE_INPUT:
    /* Without storage, a CURRENT tensor that must be kept is never renewed. */
    layout->current_count += tensor->place == POET_PLACE_CURRENT && !forward &&
                             !(in_ram && (tensor->flags & POET_FLAG_KEEP));
    if (shared && forward) { /* in the order of NEXT tensors, which it lacks */
      const uint32_t end =
          tensor->block + 1 + (poet_slots(model) - 1) * model->slot_stride;
      layout->read_end = end > layout->read_end ? end : layout->read_end;
    }
    return stored && (shared || (in_ram && tensor->place == POET_PLACE_INPUT) ||
                      slots_are_free(model, layout, tensor->block, blocks));
  case POET_PLACE_NEXT:
    layout->next_count++;
    return !stored && !forward && (tensor->flags & POET_FLAG_KEEP) &&
           (!shared || share_is_free(model, layout, tensor));
  case POET_PLACE_PAGE:
    if (!layout->page_end) {
      layout->page_begin = tensor->block;
    }
    return !stored && !in_ram &&
           range_is_free(&layout->page_end, tensor->block, blocks,
                         model->data_blocks);
  default:
    return false;
  }
}

/* A NEXT tensor is the new value of one CURRENT input of its operator. Without
 * storage, it overwrites that input, so that it is in the same place. Each
 * CURRENT tensor has one new value: the bitmap marks the CURRENT tensors whose
 * new value was found. */
static POET_CHECKED int check_renewal(struct poet *p,
                                      const struct poet_op *op) {
  struct poet_tensor next, input;
  uint32_t renewed = POET_NONE;
  TRY(poet_read_tensor(p, op->output, &next));
  if (next.place != POET_PLACE_NEXT) {
    return 0;
  }
  for (uint32_t i = 0; i < op->input_count; i++) {
    TRY(poet_read_tensor(p, op->input[i], &input));
    if (input.place == POET_PLACE_CURRENT && input.block == next.block &&
        input.size_bytes == next.size_bytes && input.cut == next.cut &&
        !(poet_in_ram(p) && (input.flags & POET_FLAG_KEEP)) &&
        !((input.flags ^ next.flags) & POET_FLAG_SHARED)) {
      renewed = op->input[i];
    }
  }
  const uint32_t mask = 1u << (renewed & 31);
  if (renewed == POET_NONE || (poet_in_ram(p) && op->overwrites != renewed) ||
      (p->memory.bitmap[renewed / 32] & mask)) {
    return poet_fail(p, POET_ERROR_bad_table, op->output);
  }
  p->memory.bitmap[renewed / 32] |= mask;
  return 0;
}

static POET_CHECKED int check_tensor(struct poet *p, struct layout *layout,
                                     uint32_t number) {
  struct poet_tensor tensor;
  struct poet_pieces pieces;
  TRY(poet_read_tensor(p, number, &tensor));
  const int error = poet_read_pieces(p, &tensor, &pieces);
  if (error == POET_ERROR_bad_table ||
      (!error && !tensor_is_sound(p, layout, number, &tensor, pieces.blocks))) {
    return poet_fail(p, POET_ERROR_bad_table, number);
  }
  return error;
}

int poet_check_model(struct poet *p, uint32_t model_bytes) {
  struct poet_model *model = &p->model;
  struct layout layout = {0};
  struct poet_op op;
  TRY(poet_get_head(p, POET_MODEL_BLOCK, model, sizeof *model));
  if (model->magic != POET_MODEL_MAGIC) {
    return POET_ERROR_bad_magic;
  }
  if (model->version != POET_VERSION) {
    return poet_fail(p, POET_ERROR_bad_version, model->version);
  }
  if (model->fingerprint != poet_fingerprint()) {
    return poet_fail(p, POET_ERROR_bad_fingerprint, model->fingerprint);
  }
  const unsigned kind = model->flags & ~(unsigned)POET_MODEL_FORWARD;
  const uint32_t own_end = poet_is_forward(p) ? sizeof p->trained : 0;
  if (model->stored_count > model->tensor_count ||
      (kind != POET_MODEL_IN_RAM &&
       (kind & ~(unsigned)POET_MODEL_FOUR_SLOTS)) ||
      model_bytes != rates_offset(p) +
                         model->rate_count * sizeof(struct poet_rate) +
                         own_end ||
      model_bytes > POET_MODEL_BLOCKS * POET_BLOCK) {
    return POET_ERROR_bad_table;
  }
  TRY(poet_copy_part(p, POET_MODEL_BLOCK, model_bytes, model, sizeof *model));
  p->trained = model->crc;
  TRY(poet_get_part(p, POET_MODEL_BLOCK, model_bytes - own_end, &p->trained,
                    own_end));
  if (model->tensor_count > p->memory.tensor_capacity) {
    return poet_fail(p, POET_ERROR_table_small, model->tensor_count);
  }
  if (!poet_in_ram(p) && (!poet_has_storage(p) || poet_is_flash(p))) {
    return POET_ERROR_no_storage;
  }
  if (poet_is_card(p) &&
      model->data_blocks > p->store.total_blocks - POET_DATA_BLOCK) {
    return poet_fail(p, POET_ERROR_storage_small,
                     model->data_blocks + POET_DATA_BLOCK);
  }
  if (model->slot_stride %
          (poet_in_ram(p) ? POET_ERASE_BLOCKS : POET_UNIT_BLOCKS) ||
      model->data_blocks > UINT32_MAX / POET_IN_BLOCK - POET_DATA_BLOCK) {
    return poet_fail(p, POET_ERROR_bad_table, POET_NONE);
  }
  for (uint32_t i = 0; i < model->tensor_count; i++) {
    TRY(check_tensor(p, &layout, i));
  }
  for (uint32_t i = model->stored_count; i < model->tensor_count; i++) {
    TRY(poet_read_op(p, i, &op));
    TRY(check_renewal(p, &op));
  }
  if (layout.current_count != layout.next_count ||
      layout.keep_count != model->keep_count ||
      (layout.page_end && (layout.page_begin < layout.stored_end ||
                           layout.page_begin < layout.last_end ||
                           layout.page_begin < layout.read_end))) {
    return poet_fail(p, POET_ERROR_bad_table, POET_NONE);
  }
  return 0;
}
