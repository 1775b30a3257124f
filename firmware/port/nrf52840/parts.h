/* parts.h - the interface between the files of this port. */
#ifndef POET_NRF52840_PARTS_H
#define POET_NRF52840_PARTS_H

/* Interrupt priorities. The card, the timer and USB have LANE_PRIORITY. The
 * UART has LINE_PRIORITY and may interrupt them. The watchdog has BITE_PRIORITY
 * and notes what it interrupts. */
enum { LANE_PRIORITY = 0x80, LINE_PRIORITY = 0x40, BITE_PRIORITY = 0 };

void nrf52840_interrupt(unsigned irq, unsigned priority);
void nrf52840_spi_start(void);

void power_clock_handler(void);
void uarte0_handler(void);
void timer1_handler(void);
void usbd_handler(void);
void spim3_handler(void);

#endif
