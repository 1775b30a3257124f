/* What every test program uses. Semihosting calls end and report it, so that
   the same program also runs on QEMU. */
#pragma once

#include <stdint.h>

#define REG32(address) (*(volatile uint32_t *)(address))
#define REG16(address) (*(volatile uint16_t *)(address))
#define REG8(address) (*(volatile uint8_t *)(address))

#define SYST_CSR REG32(0xe000e010)
#define SYST_RVR REG32(0xe000e014)
#define SYST_CVR REG32(0xe000e018)
#define NVIC_ISER REG32(0xe000e100)
#define NVIC_ICER REG32(0xe000e180)
#define NVIC_ISPR REG32(0xe000e200)
#define NVIC_ICPR REG32(0xe000e280)
#define NVIC_IPR(n) REG32(0xe000e400 + 4 * (n))
#define ICSR REG32(0xe000ed04)
#define SCR REG32(0xe000ed10)
#define SHPR2 REG32(0xe000ed1c)
#define SHPR3 REG32(0xe000ed20)
#define CPACR REG32(0xe000ed88)

#ifdef __riscv
__attribute__((naked, noinline, aligned(16))) static uint32_t
semihost(uint32_t operation, const void *argument) {
  __asm volatile(".option norvc\n"
                 "slli x0, x0, 0x1f\n"
                 "ebreak\n"
                 "srai x0, x0, 7\n"
                 "ret");
}
#else
static inline uint32_t semihost(uint32_t operation, const void *argument) {
  register uint32_t r0 __asm("r0") = operation;
  register const void *r1 __asm("r1") = argument;
  __asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}
#endif

static inline void print(const char *text) {
  semihost(0x04, text);
}

static inline void print_hex(uint32_t value) {
  char text[10];
  for (int i = 0; i < 8; i++)
    text[i] = "0123456789abcdef"[value >> (28 - 4 * i) & 15];
  text[8] = '\n';
  text[9] = 0;
  print(text);
}

/* The stores before this come before a transfer that is started after it. */
static inline void barrier(void) {
  __asm volatile("dmb" ::: "memory");
}

/* A point in time that the test harness notes; QEMU ignores it. */
static inline void mark(void) {
#ifndef QEMU
  semihost(0x1000, 0);
#endif
}

static inline void finish(uint32_t code) {
  uint32_t block[2] = {0x20026, code};
  semihost(0x20, block);
  for (;;)
    ;
}

/* Sleep until a handler sets the flag; nothing is lost between look and WFI. */
static inline void wait_for(volatile uint32_t *flag, uint32_t value) {
  for (;;) {
    __asm volatile("cpsid i" ::: "memory");
    if (*flag >= value)
      break;
    __asm volatile("wfi\n cpsie i\n isb" ::: "memory");
  }
  __asm volatile("cpsie i" ::: "memory");
}

static inline uint32_t ipsr(void) {
  uint32_t value;
  __asm volatile("mrs %0, ipsr" : "=r"(value));
  return value;
}
