#include "fields.h"

struct fields fields;
static bool recording;

int __real_poet_take_bits(struct poet *p, uint32_t count, uint32_t *value);
int __real_poet_take_gamma(struct poet *p, uint32_t *value);
int __real_poet_decode(struct poet *p, struct poet_statement *statement);
int __wrap_poet_take_bits(struct poet *p, uint32_t count, uint32_t *value);
int __wrap_poet_take_gamma(struct poet *p, uint32_t *value);
int __wrap_poet_decode(struct poet *p, struct poet_statement *statement);

static void add(uint32_t at, uint32_t width, bool gamma) {
  if (recording && width && fields.count < MOST_FIELDS) {
    fields.field[fields.count++] = (struct field){at, width, gamma};
  }
}

int __wrap_poet_take_bits(struct poet *p, uint32_t count, uint32_t *value) {
  add(p->decoder.bit, count, false);
  return __real_poet_take_bits(p, count, value);
}

/* The real function may read bits by a call that is wrapped too. */
int __wrap_poet_take_gamma(struct poet *p, uint32_t *value) {
  const uint32_t at = p->decoder.bit;
  const int error = __real_poet_take_gamma(p, value);
  if (!error) {
    add(at, p->decoder.bit - at, true);
  }
  return error;
}

int __wrap_poet_decode(struct poet *p, struct poet_statement *statement) {
  if (recording && !p->decoder.frees && fields.statements < MOST_STATEMENTS) {
    fields.start[fields.statements++] = p->decoder.bit;
  }
  return __real_poet_decode(p, statement);
}

void fields_find(struct poet *p, const struct schedule *schedule) {
  fields.count = fields.statements = 0;
  recording = true;
  (void)schedule_upload(p, schedule); /* it may be refused at any field */
  recording = false;
}
