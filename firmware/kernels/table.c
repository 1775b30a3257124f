/* table.c - a constant table in flash, which maps the code of each kernel in
 * isa.def to the kernel's function. */
#include "poet/kernel.h"

#define poet_none ((poet_kernel_fn *)0) /* row 0 has no function */

static poet_kernel_fn *const kernels[] = {
#define KERNEL(code, name, ...)                                                \
  [code] = POET_HAS_KERNEL(code) ? poet_##name : poet_none,
#include "poet/isa.def"
};

poet_kernel_fn *poet_kernel(uint8_t code) {
  return code < sizeof kernels / sizeof *kernels ? kernels[code] : poet_none;
}
