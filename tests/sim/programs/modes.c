/* Prints whether float operations are exact, for each mode of the FPU: 1
   flushes subnormals to zero, 2 and 4 are the rounding mode. */
#include "poet/exact.h"
#include "test.h"

int main(void) {
  for (uint32_t mode = 0; mode < 8; mode++) {
#ifdef __ARM_FP
    __asm volatile("vmsr fpscr, %0" ::"r"((mode & 1) << 24 | mode >> 1 << 22));
#endif
    print(poet_is_exact() ? "yes " : "no ");
  }
  return 0;
}
