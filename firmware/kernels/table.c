/* table.c - a constant table in flash, which maps the code of each kernel in
 * isa.def to the kernel's function. */
#include <stddef.h>

#include "poet/kernel.h"

#define poet_none NULL /* row 0 has no function */

static poet_kernel_fn *const kernels[] = {
#define KERNEL(code, name, ...)                                                \
  [code] = POET_HAS_KERNEL(code) ? poet_##name : NULL,
#include "poet/isa.def"
};

poet_kernel_fn *poet_kernel(uint8_t code) {
  return code < sizeof kernels / sizeof *kernels ? kernels[code] : NULL;
}
