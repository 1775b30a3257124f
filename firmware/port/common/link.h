/*
 * link.h - the serial port that the host has chosen: UART or USB.
 *
 * Who speaks first is the link: the first of the two on which a byte arrives
 * (on USB, while a program has the port open). What comes on the other is
 * dropped. When the USB port is opened or closed, by a program or because the
 * cable is out or the bus is reset, nobody is the link, and either may speak
 * first again. While the bus is suspended, which is how a cable that is out
 * looks to a chip that is not told, the UART may speak, too.
 */
#ifndef POET_LINK_H
#define POET_LINK_H

#include <stdbool.h>
#include <stdint.h>

bool link_waiting(void);
uint32_t link_receive(uint8_t *data, uint32_t size);
void link_send(const uint8_t *data, uint32_t size);
/* To whoever may hear it, without interrupts. */
void link_last_words(const char *text);

#endif
