/* registers.h - tables that describe the registers of a peripheral's model.

   A row is a register, an array of equal registers (`count`), or a block whose
   registers another table describes (`table`). A table ends with a row {0}. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum on_write {
  READ_ONLY,   /* a write is not covered by the model */
  PLAIN,       /* the field becomes the value */
  SET_ONES,    /* bits that are 1 in the value are set in the field */
  CLEAR_ONES,  /* bits that are 1 in the value are cleared in the field */
  FLIP_ONES,   /* bits that are 1 in the value are inverted in the field */
  ZERO_ONLY,   /* the model covers only the value 0 */
  BY_FUNCTION, /* only `set` has an effect */
  WRITE_ONLY,  /* as BY_FUNCTION, but a read is not covered */
};

struct reg {
  uint32_t offset;
  unsigned widths; /* allowed sizes of an access in bytes, as bits: 1 | 2 | 4 */
  enum on_write on_write;
  uint32_t mask;         /* bits that can be written; 0: all */
  uint32_t most;         /* highest value that the model covers; 0: any value */
  uint32_t field, bytes; /* offset and size in the model's struct */
  uint32_t constant;     /* value of a read if there is no field */
  /* Called for a read, instead of reading the field. */
  uint32_t (*get)(void *model);
  /* Called after the field has changed; false if the value is not covered. */
  bool (*set)(void *model, uint32_t value);
  void (*after)(void *model);
  unsigned count; /* number of equal registers; 0 means one */
  /* For a block: its table, its length in bytes, and a function that returns
     the model of number k. If that model is NULL, the registers do not exist
     now. */
  const struct reg *table;
  uint32_t stride;
  void *(*part)(void *model, unsigned k);
};

/* The field of a row; for an array, its first element. */
#define FIELD(type, member)                                                    \
  .field = offsetof(type, member), .bytes = sizeof((type *)0)->member

/* Read or write a register. False: the model does not cover the register, that
   width of access, or that value. */
bool register_read(const struct reg *table, void *model, uint32_t offset,
                   unsigned size, uint32_t *value);
bool register_write(const struct reg *table, void *model, uint32_t offset,
                    unsigned size, uint32_t value);
