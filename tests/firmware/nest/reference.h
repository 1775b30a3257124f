/* What a schedule computes, by a reference that shares only the kernels with
   the runtime: every operator once, whole, in order. Each tensor has a heap
   block of its size, so that a sanitizer sees its ends. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "../board.h"

enum { TENSORS = 512, OPERATORS = TENSORS };

struct reference {
  uint32_t count, stored; /* tensors, and those of them that are stored */
  uint32_t loss;          /* POET_NONE: there is none */
  uint8_t *data[TENSORS]; /* row-major */
  struct poet_tensor record[TENSORS];
  struct poet_cut cut[TENSORS];
  uint32_t
      current[TENSORS];   /* of a NEXT tensor: its CURRENT tensor, else NONE */
  int64_t below[TENSORS]; /* of tokens and labels: whole numbers below it; -1 */
  struct poet_op op[OPERATORS];
};
extern struct reference reference;

/* Take the records of the model that the board has loaded. */
void reference_load(struct poet *p);
/* Compute a step. Return false if a renewed tensor or the loss is not finite.
 */
bool reference_step(uint32_t step);
/* Make the NEXT tensors the CURRENT ones. */
void reference_commit(void);
/* Fill a stored tensor with random values. Tokens and labels are those that its
   operators have, now and then only the first of them; `wild`: or others. */
void reference_fill(uint32_t tensor, uint8_t *values, bool wild);
/* Return the bytes of all tensors, and about how many products a step adds. */
uint64_t reference_bytes(void);
double reference_work(void);
/* Change the order of a tensor's values between row-major and the parts of its
   cut, as FORMAT.md says. */
void reference_to_parts(uint32_t tensor, const uint8_t *rows, uint8_t *parts);
void reference_to_rows(uint32_t tensor, const uint8_t *parts, uint8_t *rows);

#endif
