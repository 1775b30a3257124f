/* spectrum.h - the spectrum of a vibration. */
#pragma once

#include <stdint.h>

enum { SPECTRUM_SAMPLES = 256, SPECTRUM_BANDS = 32 };

/* Compute the logarithm of the power in 32 bands of equal width, up to half the
   rate of the samples. Logarithms are scaled to about -1 to 1. */
void spectrum(const int16_t samples[SPECTRUM_SAMPLES],
              float bands[SPECTRUM_BANDS]);
