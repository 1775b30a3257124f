/*
 * startup.c - from reset to main, and the report after a fault.
 *
 * State: none before main. Order in reset_handler: the FPU is enabled before
 * any code may use it; then the stack is painted, then .data is copied and .bss
 * cleared. No code before these steps may use a variable.
 */
#include <stddef.h>
#include <stdint.h>

#include "chip.h"
#include "health.h"
#include "link.h"
#include "startup.h"

enum { PAINT = 0x5ac3965a };

extern uint32_t data_start[], data_end[], data_load[], bss_start[], bss_end[];
extern uint32_t __stack_limit[];
int main(void);

/* Copy words, or write zeros if `from` is NULL. The pointers are volatile,
 * because the compiler would otherwise replace the loop by a call of memcpy. */
static void copy(volatile uint32_t *to, const volatile uint32_t *from,
                 uintptr_t bytes) {
  for (uintptr_t i = 0; i < bytes / 4; i++) {
    to[i] = from ? from[i] : 0;
  }
}

/* Fill the unused stack with a constant. Words that keep this value were never
 * used: debuggers and tests look for them. */
static void paint_stack(void) {
  const uint32_t *sp;
  __asm volatile("mov %0, sp" : "=r"(sp));
  for (volatile uint32_t *at = __stack_limit; at < sp; at++) {
    *at = PAINT;
  }
}

void reset_handler(void) {
#ifdef __ARM_FP
  *(volatile uint32_t *)0xe000ed88 = 0xfu << 20; /* CPACR: the FPU */
  __asm volatile("dsb\n isb" ::: "memory");
#endif
  paint_stack();
  copy(data_start, data_load, (uintptr_t)data_end - (uintptr_t)data_start);
  copy(bss_start, NULL, (uintptr_t)bss_end - (uintptr_t)bss_start);
  main();
  chip_restart();
}

/* The C library's sqrtf stores its error number here. The C library's own
 * __errno would add a hundred bytes of state. */
int *__errno(void);
int *__errno(void) {
  static int error;
  return &error;
}

static void hex(char *to, uint32_t value, int digits) {
  while (digits--) {
    to[digits] = "0123456789abcdef"[value & 15];
    value >>= 4;
  }
}

/* Send the program counter and the link register at the fault, then restart. If
 * the UART hangs, the watchdog resets the chip, so the note comes first. */
__attribute__((used)) void report_fault(uint32_t at, uint32_t from) {
  static char text[] = "poet: fault 00 at 00000000, from 00000000\r\n";
  uint32_t exception;
  __asm volatile("mrs %0, ipsr" : "=r"(exception));
  health_note(exception << 8 | POET_RESET_fault, at, from);
  hex(text + 12, exception, 2);
  hex(text + 18, at, 8);
  hex(text + 33, from, 8);
  link_last_words(text);
  chip_restart();
}

/* The interrupt of the watchdog, whose reset follows. Pass the program counter
 * and the link register of the interrupted code on. */
__attribute__((naked)) void watchdog_handler(void) {
  __asm volatile("mov r2, sp\n"
                 "ldr r0, [r2, #24]\n"
                 "ldr r1, [r2, #20]\n"
                 "ldr r3, =chip_watchdog_bites\n"
                 "bx r3");
}

/* A fault never returns, so the report uses the stack from its top again. A
 * fault therefore needs no stack of its own, except for the registers that the
 * core has pushed (r0 to r3, r12, lr, pc, xpsr). These are read first. */
__attribute__((naked)) void fault_handler(void) {
  __asm volatile("mov r2, sp\n"
                 "ldr r0, [r2, #24]\n"
                 "ldr r1, [r2, #20]\n"
                 "ldr r3, =stack_top\n"
                 "mov sp, r3\n"
                 "b report_fault");
}
