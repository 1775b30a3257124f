/*
 * exact.h - float operations as they are written, whatever options a compiler
 * has: products and sums are not fused, and terms keep their order.
 *
 * Whatever computes with floats includes this file before its first function.
 * GCC does not know the pragma of the C standard. Its own changes code, so it
 * is used only where GCC would change results. What no pragma prevents,
 * poet_is_exact notices.
 */
#ifndef POET_EXACT_H
#define POET_EXACT_H

#include <stdbool.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined __FP_FAST_FMAF || defined __FAST_MATH__ ||                       \
    defined __RECIPROCAL_MATH__ || defined __NO_SIGNED_ZEROS__
#pragma GCC optimize("fp-contract=off", "no-fast-math",                        \
                     "no-unsafe-math-optimizations")
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Return true if float operations are exact: each is rounded to nearest, and
 * subnormals are kept. The options of the compiler may prevent this, and modes
 * of the processor, which other code can set. */
bool poet_is_exact(void);

#ifdef __cplusplus
}
#endif

#endif
