/* The fields of a plan's bits, as the decoder reads them. */
#ifndef FIELDS_H
#define FIELDS_H

#include "schedule.h"

enum { MOST_FIELDS = 1 << 16, MOST_STATEMENTS = 1 << 14 };

struct field {
  uint32_t at, width; /* in bits */
  bool gamma;         /* an Elias gamma code */
};

struct fields {
  struct field field[MOST_FIELDS];
  uint32_t start[MOST_STATEMENTS]; /* first bits of the statements */
  uint32_t count, statements;
};
extern struct fields fields;

/* Let the board load the schedule, and record what its decoder reads. The
   program is linked with --wrap for poet_take_bits, poet_take_gamma and
   poet_decode. */
void fields_find(struct poet *p, const struct schedule *schedule);

#endif
