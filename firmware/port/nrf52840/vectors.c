/* vectors.c - the nRF52840's vector table (Product Specification,
 * "Instantiation"): a constant at the start of the image. */
#include "parts.h"
#include "registers.h"
#include "startup.h"

enum { VECTORS = 16 + 48 };

extern handler *const vectors[VECTORS];

/* fault_handler is the default of every entry. Entries for other handlers
 * replace it. */
#pragma GCC diagnostic ignored "-Woverride-init"
__attribute__((section(".vectors"), used)) handler *const vectors[VECTORS] = {
    [2 ... VECTORS - 1] = fault_handler,
    [0] = (handler *)(void *)stack_top,
    [1] = reset_handler,
    [16 + IRQ_POWER_CLOCK] = power_clock_handler,
    [16 + IRQ_UARTE0] = uarte0_handler,
    [16 + IRQ_TIMER1] = timer1_handler,
    [16 + IRQ_WDT] = watchdog_handler,
    [16 + IRQ_USBD] = usbd_handler,
    [16 + IRQ_SPIM3] = spim3_handler,
};
