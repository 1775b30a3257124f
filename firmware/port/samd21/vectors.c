/* vectors.c - the SAM D21's vector table (data sheet, table 11-3): a constant
 * at the start of the image, where the boot loader and SCB_VTOR expect it. */
#include "parts.h"
#include "registers.h"
#include "startup.h"

enum { VECTORS = 16 + 28 };

extern handler *const vectors[VECTORS];

/* fault_handler is the default of every entry. Entries for other handlers
 * replace it. */
#pragma GCC diagnostic ignored "-Woverride-init"
__attribute__((section(".vectors"), used)) handler *const vectors[VECTORS] = {
    [2 ... VECTORS - 1] = fault_handler,
    [0] = (handler *)(void *)stack_top,
    [1] = reset_handler,
    [16 + IRQ_WDT] = watchdog_handler,
    [16 + IRQ_DMAC] = dmac_handler,
    [16 + IRQ_USB] = usb_handler,
    [16 + IRQ_SERCOM5] = sercom5_handler,
    [16 + IRQ_TC4] = tc4_handler,
};
