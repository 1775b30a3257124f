/* parts.h - the interface between the files of this port. */
#ifndef POET_SAMD21_PARTS_H
#define POET_SAMD21_PARTS_H

/* Interrupt priorities (chip.h). An interrupt with a lower number can interrupt
 * one with a higher number. */
enum {
  BITE_PRIORITY = 0,    /* the watchdog: it notes what it interrupts */
  LINE_PRIORITY = 0x40, /* the UART: a byte must be fetched within 10 us */
  LANE_PRIORITY = 0x80, /* card, timer and USB */
};

/* samd21_clock connects a generic clock channel to a generator. samd21_pin
 * connects a pin to a peripheral. samd21_interrupt sets an interrupt's priority
 * and enables the interrupt. */
void samd21_clock(unsigned channel, unsigned from);
void samd21_pin(unsigned pin, unsigned function, unsigned config);
void samd21_interrupt(unsigned irq, unsigned priority);
void samd21_spi_start(void);
void samd21_usb_start(void);

void tc4_handler(void);
void sercom5_handler(void);
void dmac_handler(void);
void usb_handler(void);

#endif
