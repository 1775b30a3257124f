/* parts.h - what the files of this port tell each other. */
#ifndef POET_NRF52840_PARTS_H
#define POET_NRF52840_PARTS_H

/* Of interrupts: the lane's, and what may interrupt them. */
enum { LANE_PRIORITY = 0x80, LINE_PRIORITY = 0x40 };

void nrf52840_interrupt(unsigned irq, unsigned priority);
void nrf52840_spi_start(void);

void power_clock_handler(void);
void uarte0_handler(void);
void timer1_handler(void);
void usbd_handler(void);
void spim3_handler(void);

#endif
