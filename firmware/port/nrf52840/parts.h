/* parts.h - what the files of this port tell each other. */
#ifndef POET_NRF52840_PARTS_H
#define POET_NRF52840_PARTS_H

void nrf52840_interrupt(unsigned irq, unsigned priority);
void nrf52840_spi_start(void);

void power_clock_handler(void);
void uarte0_handler(void);
void timer1_handler(void);
void usbd_handler(void);
void spim3_handler(void);

#endif
