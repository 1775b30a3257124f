/* Arithmetic whose result no interrupt may change: IT blocks, 64-bit, float
   and double, recursion. SysTick and request 0 interrupt it and compute too. */
#include "test.h"

#ifndef TICKS
#define TICKS 0
#endif

static volatile uint32_t ticks, requests, wrong_ipsr;
static volatile float handler_float = 1.0f;

void systick_handler(void) {
  if (ipsr() != 15)
    wrong_ipsr++;
  handler_float = handler_float * 1.0001f + 0.5f;
  ticks++;
}

void irq0_handler(void) {
  if (ipsr() != 16)
    wrong_ipsr++;
  handler_float = handler_float / 1.25f - 0.25f;
  requests++;
}

static uint32_t hash = 2166136261u;

static void mix(uint32_t value) {
  hash = (hash ^ value) * 16777619u;
}

static uint32_t bits(float f) {
  union {
    float f;
    uint32_t u;
  } view = {f};
  return view.u;
}

__attribute__((noinline)) static uint32_t ackermann(uint32_t m, uint32_t n) {
  if (m == 0)
    return n + 1;
  return ackermann(m - 1, n == 0 ? 1 : ackermann(m, n - 1));
}

__attribute__((noinline)) static int32_t select(int32_t a, int32_t b,
                                                int32_t c) {
  int32_t low = a < b ? a : b;
  int32_t high = a < b ? b : a;
  return c < low ? low : c > high ? high : c;
}

int main(void) {
  NVIC_ISER = 1;
  SHPR3 = 0x40u << 24;
  if (TICKS) {
    SYST_RVR = TICKS;
    SYST_CVR = 0;
    SYST_CSR = 7;
  }
  uint64_t wide = 0x123456789abcdefu;
  uint32_t state = 1;
  float f = 0.75f;
  double d = 1.5;
  for (uint32_t i = 0; i < 400; i++) {
    state = state * 1664525u + 1013904223u;
    wide = wide * 6364136223846793005u + state;
    f = f * 1.375f + (float)(int32_t)state * 1e-9f;
    d = d * 0.96875 + (double)(state >> 8);
    if (f > 1000.0f)
      f = f / 3.0f;
    mix((uint32_t)select((int32_t)state, (int32_t)(wide >> 32), (int32_t)i));
    mix((uint32_t)(wide / (state | 1)));
    mix(bits(f));
    mix(bits((float)d));
    mix((uint32_t)((int32_t)state / (int32_t)(i + 3)));
  }
  mix(ackermann(2, 9));
  SYST_CSR = 0;
  print_hex(hash);
  print_hex(wrong_ipsr);
#ifndef QEMU
  print_hex(ticks);
  print_hex(requests);
#endif
  return (TICKS && !ticks) || wrong_ipsr;
}
