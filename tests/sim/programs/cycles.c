/* Stretches of instructions between two marks; the test knows their cost. */
#include "test.h"

#define MARK " movs r0, #1\n lsls r0, r0, #12\n bkpt 0xab\n"
#define CORE "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "cc", "memory"
#define STRETCH(text)                                                          \
  __asm volatile(".syntax unified\n" MARK text MARK "b 9f\n .ltorg\n 9:\n" ::  \
                     : CORE)

uint32_t words[16];

#ifdef __ARM_FP
#define STRETCH_FP(text)                                                       \
  __asm volatile(".syntax unified\n" MARK text MARK ::"r"(words)               \
                 : CORE, "s0", "s1", "s2", "s3", "s4", "s5", "s6")
#endif

int main(void) {
  STRETCH("");
  STRETCH("movs r2, #1\n adds r2, #1\n lsls r2, r2, #3\n muls r2, r2\n");
  STRETCH("movs r2, #10\n 1: subs r2, #1\n bne 1b\n");
  STRETCH("ldr r2, =words\n ldr r3, [r2]\n ldr r4, [r2, #4]\n str r3, [r2]\n");
  STRETCH("ldr r2, =words\n ldmia r2!, {r3, r4, r5}\n");
  STRETCH("push {r4, r5}\n pop {r4, r5}\n");
  STRETCH("b 1f\n nop\n 1: nop\n");
#ifdef __ARM_FP
  STRETCH_FP("vmul.f32 s0, s1, s2\n vadd.f32 s3, s4, s5\n");
  STRETCH_FP("vmul.f32 s0, s1, s2\n vadd.f32 s3, s3, s0\n");
  STRETCH_FP("vfma.f32 s0, s1, s2\n vmov.f32 s5, s6\n");
  STRETCH_FP("vdiv.f32 s0, s1, s2\n");
  STRETCH_FP(
      "mov r2, %0\n vldr s0, [r2]\n vldr s1, [r2, #4]\n vstr s2, [r2]\n");
  STRETCH("movs r2, #9\n movs r3, #2\n udiv r2, r2, r3\n");
  STRETCH("movs r2, #9\n cmp r2, #3\n ite gt\n movgt r3, #1\n movle r3, #2\n");
#endif
  return 0;
}
