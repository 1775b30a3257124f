/* instructions.c - call one kernel of a 3 by 3 convolution, 16 channels of 32
 * by 32 to 16 channels, or none. The argument is the number of the kernel. */
#include <stdlib.h>

#include "poet/isa.h"
#include "poet/kernel.h"

enum { CHANNELS = 16, SIZE = 32, TAPS = 9 };

static float x[CHANNELS * SIZE * SIZE], y[CHANNELS * SIZE * SIZE];
static float weight[CHANNELS * CHANNELS * TAPS];

int main(int argc, char **argv) {
  const int kernel = argc > 1 ? atoi(argv[1]) : 0;
  const struct poet_op op = {.kernel = (uint8_t)kernel,
                             .sink = POET_SINK_store,
                             .input_count = 2,
                             .n = 1,
                             .c = CHANNELS,
                             .h = SIZE,
                             .w = SIZE,
                             .k = CHANNELS,
                             .oh = SIZE,
                             .ow = SIZE,
                             .groups = 1,
                             .kernel_h = 3,
                             .kernel_w = 3,
                             .stride_h = 1,
                             .stride_w = 1,
                             .pad_h = 1,
                             .pad_w = 1};
  struct poet_call call = {.op = &op,
                           .whole = &op,
                           .in = {x, weight},
                           .out = y,
                           .first = true,
                           .last = true};
  if (kernel == POET_KERNEL_conv2d_grad_input) {
    call.in[0] = y;
    call.out = x;
  } else if (kernel == POET_KERNEL_conv2d_grad_weight) {
    call.in[1] = y;
    call.out = weight;
  }
  if (kernel) {
    poet_kernel(op.kernel)(&call);
  }
  return 0;
}
