/* A naive matrix product, for the cost of a multiply-accumulate. */
#include "test.h"

#define N 16
#ifndef REPEAT
#define REPEAT 1
#endif

static float a[N][N], b[N][N], c[N][N];

__attribute__((noinline)) static void product(void) {
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      float sum = 0;
      for (int k = 0; k < N; k++)
        sum += a[i][k] * b[k][j];
      c[i][j] = sum;
    }
}

int main(void) {
  uint32_t state = 1, hash = 2166136261u;
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      state = state * 1664525u + 1013904223u;
      a[i][j] = (float)(int32_t)state * 0x1p-31f;
      b[j][i] = (float)(int32_t)(state << 7) * 0x1p-30f;
    }
  mark();
  for (int r = 0; r < REPEAT; r++)
    product();
  mark();
  for (int i = 0; i < N * N; i++) {
    union {
      float f;
      uint32_t u;
    } view = {c[i / N][i % N]};
    hash = (hash ^ view.u) * 16777619u;
  }
  print_hex(hash);
  return 0;
}
