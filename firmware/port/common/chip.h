/*
 * chip.h - the functions that the portable part of a bare-metal port needs from
 * a chip.
 *
 * An image contains the code of one chip. This code provides the functions
 * chip_*, and its interrupts call the functions card_*. All these interrupts
 * have the same priority, except that of the UART, which may be higher.
 */
#ifndef POET_CHIP_H
#define POET_CHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The board's name, which is also the name of its folder in boards/. The build
 * defines this macro. */
#define BOARD_TEXT(name) #name
#define BOARD_NAMED(name) BOARD_TEXT(name)
#define BOARD_NAME BOARD_NAMED(POET_BOARD)

#define CHIP_TICK_HZ 1000000u
#define CHIP_EXCHANGE_MAX 514u

/* Start clocks, pins, timer, UART, SPI and USB controller (usb.h), and enable
 * their interrupts. */
void chip_start(void);
/* Write a text that is different on each chip: at least 8 characters and a
 * terminating zero. */
void chip_unique_id(char text[17]);

/* Return the time of a free-running clock of CHIP_TICK_HZ. The clock wraps
 * around at 2^32. */
uint32_t chip_ticks(void);
/* After `us` microseconds, chip_alarm calls card_alarm once, and chip_wake
 * wakes the core once. If `us` is 0, the earlier request is cancelled. */
void chip_alarm(uint32_t us);
void chip_wake(uint32_t us);

/* Set the SPI clock of the card: full speed if `fast`, otherwise at most 400
 * kHz. */
void chip_spi_speed(bool fast);
void chip_spi_select(bool selected);
/* Exchange 1 to CHIP_EXCHANGE_MAX bytes by DMA, then call card_exchanged from
 * an interrupt. If `out` is NULL, 0xff is sent. If `in` is NULL, received bytes
 * are dropped. The exchange also computes the CRC-16 of `out`, or of `in` if
 * `out` is NULL, with `crc` as its start value. */
void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size,
                       uint16_t crc);
/* Return the CRC of the last exchange, once card_exchanged has been called. */
uint16_t chip_spi_crc(void);

/* The UART. chip_uart_receive takes at most `size` received bytes, none after a
 * zero, and returns their number. Unless the last of them is a zero, the
 * UART's interrupt stores the bytes that follow in the rest of `data`: the next
 * call must continue there. chip_uart_drop drops all received bytes and ends
 * the use of `data`. chip_uart_send returns when the last byte is on its way.
 */
uint32_t chip_uart_receive(uint8_t *data, uint32_t size);
void chip_uart_drop(void);
bool chip_uart_waiting(void);
void chip_uart_send(const uint8_t *data, uint32_t size);
/* Send a text after a fault, without the use of interrupts. */
void chip_last_words(const char *text);
/* Reset the chip. */
_Noreturn void chip_restart(void);

/* Lock out all interrupts. Return the previous state, which chip_unlock
 * restores. */
#ifdef __arm__
static inline uint32_t chip_lock(void) {
  uint32_t was;
  __asm volatile("mrs %0, primask\n cpsid i" : "=r"(was)::"memory");
  return was;
}
static inline void chip_unlock(uint32_t was) {
  __asm volatile("msr primask, %0" ::"r"(was) : "memory");
}
/* Sleep while interrupts are locked out. A pending interrupt still wakes the
 * core. */
static inline void chip_sleep(void) {
  __asm volatile("dsb\n wfi" ::: "memory");
}
#else /* on other processors, the tests define these three */
uint32_t chip_lock(void);
void chip_unlock(uint32_t was);
void chip_sleep(void);
#endif

/* Lock out the interrupts that run the transfer lane (lane.c), but not that of
 * the UART: the lock may last longer than the UART takes to receive a byte. */
uint32_t chip_lock_lane(void);
void chip_unlock_lane(uint32_t was);

/* The chip's interrupts call these functions, which sd_bus.c defines. */
void card_exchanged(void);
void card_alarm(void);

#endif
