/* Vectors and start of a test program. */
#include "test.h"

extern uint32_t data_start[], data_end[], data_load[], bss_start[], bss_end[];
extern uint32_t stack_top[];
int main(void);
void reset_handler(void);

void reset_handler(void) {
  for (volatile uint32_t *to = data_start, *from = data_load; to < data_end;)
    *to++ = *from++;
  for (volatile uint32_t *to = bss_start; to < bss_end;)
    *to++ = 0;
#ifdef __ARM_FP
  CPACR = 0xfu << 20;
  __asm volatile("dsb\n isb");
#endif
  finish((uint32_t)main());
}

static void unexpected(void) {
  finish(0xdead);
}

#define HANDLER(name) __attribute__((weak, alias("unexpected"))) void name(void)
HANDLER(hardfault_handler);
HANDLER(svc_handler);
HANDLER(pendsv_handler);
HANDLER(systick_handler);
HANDLER(irq0_handler);
HANDLER(irq1_handler);
HANDLER(irq2_handler);
HANDLER(irq3_handler);
HANDLER(irq4_handler);
HANDLER(irq5_handler);
HANDLER(irq6_handler);
HANDLER(irq8_handler);
HANDLER(irq10_handler);
HANDLER(irq13_handler);
HANDLER(irq14_handler);
HANDLER(irq18_handler);
HANDLER(irq19_handler);
HANDLER(irq35_handler);
HANDLER(irq47_handler);

typedef void handler(void);

__attribute__((section(".vectors"), used)) handler *const vectors[16 + 48] = {
    [0] = (handler *)(void *)stack_top,
    [1] = reset_handler,
    [2] = unexpected,
    [3] = hardfault_handler,
    [4] = unexpected,
    [5] = unexpected,
    [6] = unexpected,
    [11] = svc_handler,
    [14] = pendsv_handler,
    [15] = systick_handler,
    [16] = irq0_handler,
    [17] = irq1_handler,
    [18] = irq2_handler,
    [19] = irq3_handler,
    [20] = irq4_handler,
    [21] = irq5_handler,
    [22] = irq6_handler,
    [24] = irq8_handler,
    [26] = irq10_handler,
    [29] = irq13_handler,
    [30] = irq14_handler,
    [34] = irq18_handler,
    [35] = irq19_handler,
    [16 + 35] = irq35_handler,
    [16 + 47] = irq47_handler,
};
