/*
 * link.h - the serial port that the host uses: UART or USB.
 *
 * The first port to receive a byte becomes the active link (USB: while a
 * program has the port open). Bytes on the other port are dropped. Opening or
 * closing the USB port resets the choice. A bus reset or a pulled cable also
 * closes the USB port. While the bus is suspended, a byte on the UART makes the
 * UART the link: a chip that cannot detect the cable sees a pulled cable as
 * suspended.
 */
#ifndef POET_LINK_H
#define POET_LINK_H

#include <stdbool.h>
#include <stdint.h>

/* Return true if the link has received bytes. If no port is the active link
 * yet, choose one first. */
bool link_waiting(void);
/* Take at most `size` received bytes, none after a zero, and return their
 * number. Unless the last of them is a zero, the UART may store the bytes that
 * follow in the rest of `data`: the next call must continue there. */
uint32_t link_receive(uint8_t *data, uint32_t size);
void link_send(const uint8_t *data, uint32_t size);
/* Send on both ports after a fault, without the use of interrupts. */
void link_last_words(const char *text);

#endif
