/* One thing that a chip does not allow, by number. */
#include "test.h"

static volatile uint32_t words[4];

void hardfault_handler(void) {
  print("hard fault\n");
  finish(3);
}

__attribute__((noinline)) static uint32_t deep(uint32_t n) {
  volatile uint32_t room[64];
  room[0] = n;
  return n ? deep(n - 1) + room[0] : 0;
}

#if CASE > 12 && CASE < 19 && defined __ARM_FP
/* Accesses that even the M4 makes at multiples of 4 alone. */
__attribute__((noipa)) static void access(void *at) {
  __asm volatile(
#if CASE == 13
      "ldrd r2, r3, [%0]"
#elif CASE == 14
      "ldmia %0, {r2, r3}"
#elif CASE == 15
      "vldr s0, [%0]"
#elif CASE == 16
      "vldmia %0, {s0}"
#elif CASE == 17
      "strd r2, r3, [%0]"
#else /* which is not executed */
      "cmp %0, #0\n it eq\n ldrdeq r2, r3, [%0]"
#endif
      ::"r"(at)
      : "r2", "r3", "s0", "cc", "memory");
}
#endif

int main(void) {
#if CASE == 1
  volatile uint32_t *volatile odd = (volatile uint32_t *)((uintptr_t)words + 2);
  *odd = 1;
#elif CASE == 2
  REG32(0x00001000) = 1;
#elif CASE == 3
  words[0] = REG32(0x50000000 + 0x1000000);
#elif CASE == 4
  REG32(0xe000ed3c) = 1;
#elif CASE == 5
  words[0] = deep(words[0] + 1000);
#elif CASE == 6
  __asm volatile(".inst.n 0xde00");
#elif CASE == 7
  __asm volatile(".inst.n 0xbf08\n nop"); /* IT EQ */
#elif CASE == 8
  CPACR = 0;
  __asm volatile("dsb\n isb\n .inst.w 0xee300a00"); /* VADD.F32 s0, s0, s0 */
#elif CASE == 9
  ((void (*)(void))0x30000001)();
#elif CASE == 10
  __asm volatile("msr control, %0\n isb\n svc 0" ::"r"(2));
#elif CASE == 11
  NVIC_IPR(0) = 0;
  REG8(0xe000e400) = 1; /* a byte access, which the M0+ does not have */
#elif CASE == 12 /* code in RAM, and other code in its place */
  volatile uint16_t *code = (volatile uint16_t *)words;
  uint32_t (*call)(void) = (uint32_t (*)(void))((uintptr_t)words | 1);
  code[0] = 0x2001; /* movs r0, #1 */
  code[1] = 0x4770; /* bx lr */
  __asm volatile("dsb\n isb" ::: "memory");
  uint32_t found = call();
  code[0] = 0x2002;
  __asm volatile("dsb\n isb" ::: "memory");
  return (int)(found * 10 + call());
#elif CASE > 12 && defined __ARM_FP
  access((uint8_t *)words + 2);
#endif
  return 0;
}
