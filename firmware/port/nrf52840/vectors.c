/* The nRF52840's vector table (Product Specification, "Instantiation"). */
#include "parts.h"
#include "registers.h"
#include "startup.h"

extern handler *const vectors[16 + 48];

__attribute__((section(".vectors"), used)) handler *const vectors[16 + 48] = {
    CORE_VECTORS,
    [16 + IRQ_UARTE0] = uarte0_handler,
    [16 + IRQ_TIMER1] = timer1_handler,
    [16 + IRQ_SPIM3] = spim3_handler,
};
