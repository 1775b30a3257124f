/*
 * Which operands an operator's record describes, and how large they are:
 * kernel.h as a table. A kernel is only called when its operands have these
 * sizes, so it cannot leave them.
 */
#include <string.h>

#include "runtime.h"

/* Operands by letter. In a row's inputs a small letter may be missing.
 *
 *   X n c h w        Y n k oh ow    P n c oh ow    F n k      G n c
 *   W k c/groups kernel_h kernel_w  V k c h w      K k        C c
 *   Q 2 c            L n            S one            D 2 n
 *   A, B  X but 1 along the axes in variant's low, high half
 *   R     X without the axes in variant's low half
 *   Z n k h w        T n c+k h w    E k c            J n w
 *   M n groups h k   N n groups k w                  O n groups h w
 */
enum {
  CONV = 1,
  POOL = 2,
  SINK = 4,
  MUST = 8, /* overwrite */
  SLICE = 16,
  ORDER = 32
};

struct shape {
  char inputs[6];
  char output; /* with a sink also each of the sink's inputs */
  uint8_t rules;
  uint8_t may; /* bits: inputs whose memory the output may take over */
};

static const struct shape shapes[] = {
    [POET_KERNEL_conv2d] = {"XWk", 'Y', CONV, 0},
    [POET_KERNEL_conv2d_grad_input] = {"YW", 'X', CONV, 0},
    [POET_KERNEL_conv2d_grad_weight] = {"XY", 'W', CONV | SINK, 0},
    [POET_KERNEL_linear] = {"XVk", 'F', 0, 0},
    [POET_KERNEL_linear_grad_input] = {"FV", 'X', 0, 0},
    [POET_KERNEL_linear_grad_weight] = {"XF", 'V', SINK, 0},
    [POET_KERNEL_grad_bias] = {"Y", 'K', SINK, 0},
    [POET_KERNEL_batchnorm_stats] = {"X", 'Q', 0, 0},
    [POET_KERNEL_batchnorm] = {"XQCC", 'X', 0, 0},
    [POET_KERNEL_batchnorm_running] = {"QQ", 'Q', MUST, 2},
    [POET_KERNEL_batchnorm_sums] = {"XQX", 'Q', 0, 0},
    [POET_KERNEL_batchnorm_grad_input] = {"XQCXQ", 'X', 0, 0},
    [POET_KERNEL_batchnorm_grad_input_frozen] = {"QCX", 'X', 0, 0},
    [POET_KERNEL_batchnorm_grad_param] = {"Q", 'C', SINK, 0},
    [POET_KERNEL_relu] = {"X", 'X', 0, 1},
    [POET_KERNEL_relu_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_relu6] = {"X", 'X', 0, 1},
    [POET_KERNEL_relu6_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_maxpool2d] = {"X", 'P', POOL, 0},
    [POET_KERNEL_maxpool2d_grad] = {"XP", 'X', POOL, 0},
    [POET_KERNEL_avgpool2d] = {"X", 'P', POOL, 0},
    [POET_KERNEL_avgpool2d_grad] = {"P", 'X', POOL, 0},
    [POET_KERNEL_global_avgpool] = {"X", 'G', 0, 0},
    [POET_KERNEL_global_avgpool_grad] = {"G", 'X', 0, 0},
    [POET_KERNEL_add] = {"AB", 'X', 0, 3},
    [POET_KERNEL_dropout] = {"X", 'X', 0, 1},
    [POET_KERNEL_softmax_xent] = {"GL", 'S', 0, 0},
    [POET_KERNEL_softmax_xent_grad] = {"GL", 'G', 0, 0},
    [POET_KERNEL_mse] = {"XX", 'S', 0, 0},
    [POET_KERNEL_mse_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_apply_gradient] = {"X", 'X', SINK, 0},
    [POET_KERNEL_momentum_step] = {"XX", 'X', MUST, 1},
    [POET_KERNEL_sub] = {"AB", 'X', 0, 3},
    [POET_KERNEL_mul] = {"AB", 'X', 0, 3},
    [POET_KERNEL_scale] = {"A", 'X', 0, 1},
    [POET_KERNEL_reduce] = {"X", 'R', SINK, 0},
    [POET_KERNEL_reduce_product] = {"XB", 'R', SINK, 0},
    [POET_KERNEL_clip] = {"X", 'X', 0, 1},
    [POET_KERNEL_clip_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_sigmoid] = {"X", 'X', 0, 1},
    [POET_KERNEL_sigmoid_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_tanh] = {"X", 'X', 0, 1},
    [POET_KERNEL_tanh_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_gelu] = {"X", 'X', 0, 1},
    [POET_KERNEL_gelu_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_transpose] = {"X", 'X', ORDER, 0},
    [POET_KERNEL_concat] = {"XZ", 'T', 0, 0},
    [POET_KERNEL_slice] = {"X", 'Z', SLICE, 0},
    [POET_KERNEL_slice_grad] = {"Z", 'X', SLICE, 0},
    [POET_KERNEL_matmul] = {"MN", 'O', SINK, 0},
    [POET_KERNEL_softmax] = {"Xj", 'X', 0, 1},
    [POET_KERNEL_softmax_grad] = {"XX", 'X', 0, 3},
    [POET_KERNEL_layernorm_stats] = {"G", 'D', 0, 0},
    [POET_KERNEL_layernorm] = {"GDCC", 'G', 0, 1},
    [POET_KERNEL_layernorm_grad_input] = {"GDCG", 'G', 0, 0},
    [POET_KERNEL_layernorm_grad_weight] = {"GDG", 'C', SINK, 0},
    [POET_KERNEL_embedding] = {"LE", 'G', 0, 0},
    [POET_KERNEL_embedding_grad] = {"LG", 'E', SINK, 0},
    [POET_KERNEL_average] = {"XXx", 'X', MUST, 2},
    [POET_KERNEL_average_square] = {"XXx", 'X', MUST, 2},
    [POET_KERNEL_adam_step] = {"XXX", 'X', MUST, 1},
};

/* Product of up to four factors as bytes of 32-bit elements; 0 if there are
 * none, or more than 32 bits can count. */
static uint32_t bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const uint32_t factors[] = {a, b, c, d};
  uint64_t product = 4;
  for (unsigned i = 0; i < 4; i++) {
    product *= factors[i];
    if (product > UINT32_MAX) {
      return 0;
    }
  }
  return (uint32_t)product;
}

/* Bytes of x if its size were 1 along some axes. */
static uint32_t without(const struct poet_op *op, uint32_t axes) {
  return bytes(axes & 1 ? 1 : op->n, axes & 2 ? 1 : op->c, axes & 4 ? 1 : op->h,
               axes & 8 ? 1 : op->w);
}

static uint32_t letter_bytes(const struct poet_op *op, int letter) {
  switch (letter) {
  case 'X':
    return bytes(op->n, op->c, op->h, op->w);
  case 'Y':
    return bytes(op->n, op->k, op->oh, op->ow);
  case 'P':
    return bytes(op->n, op->c, op->oh, op->ow);
  case 'F':
    return bytes(op->n, op->k, 1, 1);
  case 'G':
    return bytes(op->n, op->c, 1, 1);
  case 'W':
    return bytes(op->k, op->c / op->groups, op->kernel_h, op->kernel_w);
  case 'V':
    return bytes(op->k, op->c, op->h, op->w);
  case 'K':
    return bytes(op->k, 1, 1, 1);
  case 'C':
    return bytes(op->c, 1, 1, 1);
  case 'Q':
    return bytes(op->c, 2, 1, 1);
  case 'L':
    return bytes(op->n, 1, 1, 1);
  case 'D':
    return bytes(op->n, 2, 1, 1);
  case 'A':
  case 'R':
    return without(op, op->variant);
  case 'B':
    return without(op, op->variant >> 4);
  case 'Z':
    return bytes(op->n, op->k, op->h, op->w);
  case 'T': /* the sum of two sizes that are sound is not too large */
    return bytes(op->n, op->c + op->k, op->h, op->w);
  case 'E':
    return bytes(op->k, op->c, 1, 1);
  case 'J':
    return bytes(op->n, op->w, 1, 1);
  case 'M':
    return bytes(op->n, op->groups, op->h, op->k);
  case 'N':
    return bytes(op->n, op->groups, op->k, op->w);
  case 'O':
    return bytes(op->n, op->groups, op->h, op->w);
  default:
    return bytes(1, 1, 1, 1);
  }
}

/* May a window slide `out` times over `size` elements with `pad` in front? The
 * last one meets them or, where the padding is as wide as the window, lies in
 * as much padding behind them. */
static bool slides(uint32_t size, uint32_t out, uint32_t window,
                   uint32_t stride, uint32_t pad) {
  const uint32_t last = pad < window ? size + pad - 1 : size + 2 * pad - window;
  return window && stride && out - 1 <= last / stride;
}

/* Does the variant name each of four axes once? */
static bool is_an_order(uint32_t variant) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < 4; i++) {
    found |= 1u << (variant >> 2 * i & 3u);
  }
  return found == 15;
}

static bool geometry_is_sound(const struct poet_op *op, uint32_t rules) {
  if (rules & ORDER) {
    return is_an_order(op->variant);
  }
  if (rules & SLICE) {
    return op->oh <= op->c && op->k <= op->c - op->oh;
  }
  if (!(rules & (CONV | POOL))) {
    return true;
  }
  if (!slides(op->h, op->oh, op->kernel_h, op->stride_h, op->pad_h) ||
      !slides(op->w, op->ow, op->kernel_w, op->stride_w, op->pad_w)) {
    return false;
  }
  if (rules & CONV) {
    return op->groups && op->c % op->groups == 0 && op->k % op->groups == 0;
  }
  return op->pad_h < op->kernel_h && op->pad_w < op->kernel_w;
}

/* Inputs that the sink adds behind the kernel's `own`, all of the gradient's
 * size; false if their number is wrong. */
static bool sink_is_sound(const struct poet_op *op, uint32_t own) {
  const uint32_t extra = op->input_count - own;
  switch (op->sink) {
  case POET_SINK_store:
    return extra == 0;
  case POET_SINK_accumulate:
  case POET_SINK_sgd:
    return extra == 1;
  case POET_SINK_momentum: /* the weights are only read for their decay */
    return extra == 2 || (extra == 1 && op->weight_decay == 0.0f);
  default:
    return false;
  }
}

/* Is what is overwritten, once among the inputs, one of those in `may`? */
static bool overwriting_is_sound(const struct poet_op *op, uint32_t may,
                                 bool must) {
  uint32_t found = 0;
  if (op->overwrites == POET_NONE) {
    return !must;
  }
  for (uint32_t i = 0; i < op->input_count; i++) {
    found |= (uint32_t)(op->input[i] == op->overwrites) << i;
  }
  return found && !(found & (found - 1)) && !(found & ~may);
}

static bool operands_are_sound(const struct poet_op *op,
                               const struct shape *shape) {
  const uint32_t own = (uint32_t)strlen(shape->inputs);
  const bool last_may_miss = shape->inputs[own - 1] >= 'a';
  if (shape->rules & SINK) {
    const bool must = op->sink != POET_SINK_store;
    return op->input_count >= own && sink_is_sound(op, own) &&
           overwriting_is_sound(op, (uint32_t)must << own, must);
  }
  return op->sink == POET_SINK_none &&
         (op->input_count == own ||
          (last_may_miss && op->input_count + 1u == own)) &&
         overwriting_is_sound(op, shape->may, shape->rules & MUST);
}

uint32_t poet_operand_bytes(const struct poet_op *op, uint32_t index) {
  if (op->kernel >= sizeof shapes / sizeof *shapes ||
      !shapes[op->kernel].output) {
    return 0;
  }
  const struct shape *shape = &shapes[op->kernel];
  if (op->input_count > POET_INPUTS || index > op->input_count ||
      !operands_are_sound(op, shape) || !geometry_is_sound(op, shape->rules)) {
    return 0;
  }
  if (index < op->input_count && index < strlen(shape->inputs)) {
    return letter_bytes(op, shape->inputs[index] & ~('a' - 'A'));
  }
  return letter_bytes(op, shape->output);
}
