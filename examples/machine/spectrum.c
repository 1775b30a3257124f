/* spectrum.c - see spectrum.h. State: the buffers of the transform, which are
   valid during a call only. */
#include "spectrum.h"

#include <math.h>

enum { N = SPECTRUM_SAMPLES, BITS = 8, BINS = N / 2 / SPECTRUM_BANDS };
static const float PI = 3.14159265f;
static float re[N], im[N];

static void swap_in_bit_order(void) {
  for (unsigned i = 0; i < N; i++) {
    unsigned j = 0;
    for (unsigned bit = 0; bit < BITS; bit++) {
      j |= (i >> bit & 1) << (BITS - 1 - bit);
    }
    if (i < j) {
      const float kept = re[i];
      re[i] = re[j];
      re[j] = kept;
    }
  }
}

/* The transform of Cooley and Tukey. */
static void transform(void) {
  swap_in_bit_order();
  for (unsigned half = 1; half < N; half *= 2) {
    for (unsigned k = 0; k < half; k++) {
      const float angle = -PI * (float)k / (float)half;
      const float c = cosf(angle), s = sinf(angle);
      for (unsigned a = k; a < N; a += 2 * half) {
        const unsigned b = a + half;
        const float x = c * re[b] - s * im[b], y = s * re[b] + c * im[b];
        re[b] = re[a] - x;
        im[b] = im[a] - y;
        re[a] += x;
        im[a] += y;
      }
    }
  }
}

void spectrum(const int16_t samples[SPECTRUM_SAMPLES],
              float bands[SPECTRUM_BANDS]) {
  int32_t sum = 0;
  for (unsigned i = 0; i < N; i++) {
    sum += samples[i];
  }
  for (unsigned i = 0; i < N; i++) {
    const float window = 0.5f - 0.5f * cosf(2 * PI * (float)i / N);
    re[i] = window * (float)(samples[i] - sum / N);
    im[i] = 0;
  }
  transform();
  for (unsigned band = 0; band < SPECTRUM_BANDS; band++) {
    float power = 1;
    for (unsigned i = band * BINS; i < (band + 1) * BINS; i++) {
      power += re[i] * re[i] + im[i] * im[i];
    }
    bands[band] = (logf(power) - 18) / 6;
  }
}
