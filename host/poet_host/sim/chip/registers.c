/* registers.c - reads and writes registers according to the tables of
   registers.h. It keeps no state: the fields are in the models. */
#include "registers.h"

#include <string.h>

/* Return the row of a register, or NULL, and the address of its field. Set
   `model` to the model of the block in which the register lies. */
static const struct reg *find(const struct reg *table, void **model,
                              uint32_t offset, unsigned size, uint8_t **field) {
  for (const struct reg *r = table; r->widths || r->table; r++) {
    const uint32_t at = offset - r->offset, count = r->count ? r->count : 1;
    const uint32_t k = at / (r->table ? r->stride : size);
    void *part = k < count && r->table ? r->part(*model, k) : NULL;
    if (part) {
      *model = part;
      return find(r->table, model, at % r->stride, size, field);
    }
    if (k < count && at % size == 0 && (r->widths & size)) {
      *field = (uint8_t *)*model + r->field + k * r->bytes;
      return r;
    }
  }
  return NULL;
}

bool register_read(const struct reg *table, void *model, uint32_t offset,
                   unsigned size, uint32_t *value) {
  uint8_t *field;
  const struct reg *r = find(table, &model, offset, size, &field);
  if (!r || r->on_write == WRITE_ONLY)
    return false;
  *value = r->constant;
  if (r->get)
    *value = r->get(model);
  else
    memcpy(value, field, r->bytes);
  return true;
}

bool register_write(const struct reg *table, void *model, uint32_t offset,
                    unsigned size, uint32_t value) {
  uint8_t *field;
  const struct reg *r = find(table, &model, offset, size, &field);
  if (r && r->mask)
    value &= r->mask;
  if (!r || r->on_write == READ_ONLY || (r->on_write == ZERO_ONLY && value) ||
      (r->most && value > r->most))
    return false;
  uint32_t now = 0;
  memcpy(&now, field, r->bytes);
  if (r->on_write == PLAIN)
    now = value;
  else if (r->on_write == SET_ONES)
    now |= value;
  else if (r->on_write == CLEAR_ONES)
    now &= ~value;
  else if (r->on_write == FLIP_ONES)
    now ^= value;
  memcpy(field, &now, r->bytes);
  if (r->set && !r->set(model, value))
    return false;
  if (r->after)
    r->after(model);
  return true;
}
