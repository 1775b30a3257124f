/* Makes the serial application run steps in slices of one statement or cell
 * (linked with --wrap=poet_step). For want of a field of its own, the longest
 * slice in ticks is reported as the number of accesses that were repeated. */
#include "poet/poet.h"

POET_CHECKED int __wrap_poet_step(struct poet *p, uint32_t step, uint16_t first,
                                  uint16_t count,
                                  struct poet_step_result *result);

int __wrap_poet_step(struct poet *p, uint32_t step, uint16_t first,
                     uint16_t count, struct poet_step_result *result) {
  uint32_t longest = 0, longest_call = 0;
  (void)first;
  (void)count;
  int error = poet_step_begin(p, step);
  if (!error) {
    do {
      const uint32_t computed = p->result.compute_ticks;
      const uint32_t begin = p->port->ticks(p->port->context);
      error = poet_step_poll(p, 0, result);
      const uint32_t call = p->port->ticks(p->port->context) - begin;
      longest_call = error && call > longest_call ? call : longest_call;
      const uint32_t ticks = p->result.compute_ticks - computed;
      longest = ticks > longest ? ticks : longest;
    } while (error == POET_BUSY);
    result->storage_retries = longest;
    result->overhead_asleep_ticks = longest_call;
  }
  return error;
}
