/* mathf.h - mathematical functions that round alike on every target, unlike
 * those of C libraries. */
#ifndef POET_MATHF_H
#define POET_MATHF_H

#include <stdint.h>

/* e^x and the natural logarithm, in float32, with the same bits on every
 * target. Largest error over all floats, in units in the last place: 1.1 (exp),
 * 0.9 (log). exp: 0 below -103.97, infinite above 88.72. log: -infinity at 0,
 * NaN below. Subnormal arguments and results are correct. */
float poet_exp(float x);
float poet_log(float x);

/* tanh, the error function and 1 / (1 + e^-x). Largest error over all floats,
 * in units in the last place: 1.4 (tanh), 1.6 (erf), 2.5 (logistic). */
float poet_tanhf(float x);
float poet_erff(float x);
float poet_logistic(float x);

/* Return x^n, computed by repeated squaring from the lowest bit of n on; x^0 =
 * 1. */
float poet_power(float x, uint32_t n);

#endif
