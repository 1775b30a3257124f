/* The mutator of fuzz_nest: it knows the fields of a plan's bits, and those of
   the model's records. */
#include "mutate.h"

#include <string.h>

#include "fields.h"
#include "strange.h"

enum {
  MOST_BITS = PLAN_BYTES * 8,
  MOST_COPIED = 4096, /* bits */
  GAMMA_BITS = 80
};

static struct schedule schedule;
static uint8_t bits[MOST_BITS]; /* of the plan, one in a byte */
static uint32_t bit_count;

/* ---- bits of a plan ----------------------------------------------------- */

static void unpack(void) {
  const uint8_t *packed = schedule.plan.bytes + sizeof(struct poet_plan_header);
  bit_count = 8 * schedule.plan.header.bit_bytes;
  for (uint32_t i = 0; i < bit_count; i++) {
    bits[i] = packed[i / 8] >> (i & 7) & 1;
  }
}

/* The statement `end` has a zero as its last bit, and less than 8 zeros after
   it. */
static void pack(void) {
  uint8_t *packed = schedule.plan.bytes + sizeof(struct poet_plan_header);
  while (bit_count && !bits[bit_count - 1]) {
    bit_count--;
  }
  bits[bit_count++] = 0;
  const uint32_t size = (bit_count + 7) / 8;
  memset(packed, 0, size);
  for (uint32_t i = 0; i < bit_count; i++) {
    packed[i / 8] |= (uint8_t)(bits[i] << (i & 7));
  }
  schedule.plan_bytes = (uint32_t)sizeof(struct poet_plan_header) + size;
}

/* Replace bits by others. */
static void splice(uint32_t at, uint32_t gone, const uint8_t *in,
                   uint32_t size) {
  uint8_t keep[MOST_COPIED];
  if (at + gone > bit_count || size > sizeof keep ||
      bit_count - gone + size > MOST_BITS - 8) {
    return;
  }
  memcpy(keep, in, size);
  memmove(bits + at + size, bits + at + gone, bit_count - at - gone);
  memcpy(bits + at, keep, size);
  bit_count = bit_count - gone + size;
}

static uint32_t gamma_code(uint32_t value, uint8_t *code) {
  const uint32_t number = value + 1;
  const uint32_t zeros = 31 - (uint32_t)__builtin_clz(number);
  uint32_t size = zeros;
  memset(code, 0, zeros);
  code[size++] = 1;
  for (uint32_t i = 0; i < zeros; i++) {
    code[size++] = number >> i & 1;
  }
  return size;
}

/* Remove a statement, copy it to another place, or let it change places with
   the next one. */
static void move_statement(void) {
  const uint32_t number = random_below(fields.statements - 1);
  const uint32_t at = fields.start[number];
  const uint32_t next = fields.start[number + 1];
  const uint32_t kind = random_below(3);
  if (next > bit_count || next - at > MOST_COPIED / 2) {
    return;
  }
  if (kind == 0) {
    splice(at, next - at, bits, 0);
  } else if (kind == 1 || number + 2 >= fields.statements) {
    splice(fields.start[random_below(fields.statements)], 0, bits + at,
           next - at);
  } else {
    const uint32_t end = fields.start[number + 2];
    uint8_t first[MOST_COPIED];
    if (end <= bit_count) {
      memcpy(first, bits + at, next - at);
      memmove(bits + at, bits + next, end - next);
      memcpy(bits + at + (end - next), first, next - at);
    }
  }
}

/* Return true if later fields are still where they were. */
static bool change_field(const struct field *field) {
  if (field->at + field->width > bit_count) {
    return true;
  }
  if (field->gamma) {
    uint8_t code[GAMMA_BITS];
    uint32_t value = random_below(3) ? random_below(8) : strange(0);
    value -= value == UINT32_MAX;
    const uint32_t size = gamma_code(value, code);
    splice(field->at, field->width, code, size);
    return size == field->width;
  }
  const uint32_t width = field->width < 31 ? field->width : 31;
  const uint32_t value =
      random_below(2) ? random_below(1u << width) : strange(0);
  for (uint32_t i = 0; i < field->width; i++) {
    bits[field->at + i] = value >> i & 1;
  }
  return true;
}

static void change_plan(void) {
  board.lag = 0;
  fields_find(mutate_board(), &schedule);
  unpack();
  bool in_place = true;
  for (uint32_t left = 1 + !random_below(3) + !random_below(6);
       left && in_place; left--) {
    if (!fields.count || !random_below(12)) {
      if (bit_count) {
        bits[random_below(bit_count)] ^= 1;
      }
    } else if (fields.statements > 2 && !random_below(4)) {
      move_statement();
      in_place = false;
    } else {
      in_place = change_field(&fields.field[random_below(fields.count)]);
    }
  }
  pack();
}

/* ---- records ------------------------------------------------------------ */

struct place {
  uint32_t at, width; /* bytes of the model part */
};

static struct place place_in_tensor(uint32_t tensors, uint32_t count) {
  static const struct place places[] = {
      {offsetof(struct poet_tensor, block), 4},
      {offsetof(struct poet_tensor, size_bytes), 4},
      {offsetof(struct poet_tensor, place), 1},
      {offsetof(struct poet_tensor, flags), 1},
      {offsetof(struct poet_tensor, cut), 2}};
  struct place place = places[random_below(sizeof places / sizeof *places)];
  place.at +=
      tensors + random_below(count) * (uint32_t)sizeof(struct poet_tensor);
  return place;
}

static struct place any_place(void) {
  const struct poet_model *m = &schedule.model.header;
  const uint32_t operators = m->tensor_count > m->stored_count
                                 ? m->tensor_count - m->stored_count
                                 : 0u;
  const uint32_t tensors = (uint32_t)sizeof *m;
  const uint32_t ops =
      tensors + m->tensor_count * (uint32_t)sizeof(struct poet_tensor);
  const uint32_t cuts = ops + operators * (uint32_t)sizeof(struct poet_op);
  const uint32_t area = random_below(20);
  const uint32_t width = 1u << random_below(3);
  if (area < 5 && m->tensor_count) {
    return place_in_tensor(tensors, m->tensor_count);
  }
  if (area < 12 && operators) {
    return (struct place){ops + random_below(cuts - ops) / width * width,
                          width};
  }
  if (area < 18 && m->cut_count) {
    const uint32_t size = m->cut_count * (uint32_t)sizeof(struct poet_cut);
    return (struct place){cuts + random_below(size) / width * width, width};
  }
  return (struct place){random_below(tensors) / width * width, width};
}

static void change_model(void) {
  for (uint32_t left = 1 + !random_below(3); left; left--) {
    const struct place place = any_place();
    if (place.at + place.width <= schedule.model_bytes) {
      uint32_t value = 0;
      memcpy(&value, schedule.model.bytes + place.at, place.width);
      value = strange(value);
      memcpy(schedule.model.bytes + place.at, &value, place.width);
    }
  }
}

static void change_plan_header(void) {
  uint8_t *at = schedule.plan.bytes +
                random_below(sizeof(struct poet_plan_header) / 2) * 2;
  uint16_t value;
  memcpy(&value, at, sizeof value);
  value = (uint16_t)strange(value);
  memcpy(at, &value, sizeof value);
}

/* ---- libFuzzer ---------------------------------------------------------- */

size_t mutate(uint8_t *data, size_t size, size_t most) {
  if (!schedule_read(&schedule, data, size)) {
    return 0;
  }
  schedule_seal(&schedule);
  const uint32_t kind = random_below(16);
  if (kind < 11) {
    change_plan();
  } else if (kind < 15) {
    change_model();
  } else {
    change_plan_header();
  }
  return schedule_write(&schedule, data, most);
}
