/* table.c - the function of each kernel by its code in isa.def: a constant
 * table in flash. */
#include <stddef.h>

#include "poet/kernel.h"

#define poet_none NULL /* row 0 has no function */

static poet_kernel_fn *const kernels[] = {
#define KERNEL(code, name, ...) [code] = poet_##name,
#include "poet/isa.def"
};

poet_kernel_fn *poet_kernel(uint8_t code) {
  return code < sizeof kernels / sizeof *kernels ? kernels[code] : NULL;
}
