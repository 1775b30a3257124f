/* The SAM D21's vector table (data sheet, table 11-3). */
#include "parts.h"
#include "registers.h"
#include "startup.h"

extern handler *const vectors[16 + 28];

__attribute__((section(".vectors"), used)) handler *const vectors[16 + 28] = {
    CORE_VECTORS,
    [16 + IRQ_DMAC] = dmac_handler,
    [16 + IRQ_SERCOM5] = sercom5_handler,
    [16 + IRQ_TC4] = tc4_handler,
};
