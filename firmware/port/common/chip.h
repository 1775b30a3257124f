/*
 * chip.h - what the portable part of a bare-metal port needs from its chip.
 *
 * An image contains one chip. It provides the functions chip_*. Its interrupts
 * call card_*. They all have one priority, except the UART's, which may be
 * higher.
 */
#ifndef POET_CHIP_H
#define POET_CHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The board's name, which is its folder in boards/. The build defines it. */
#define BOARD_TEXT(name) #name
#define BOARD_NAMED(name) BOARD_TEXT(name)
#define BOARD_NAME BOARD_NAMED(POET_BOARD)

#define CHIP_TICK_HZ 1000000u
#define CHIP_EXCHANGE_MAX 514u

/* Start clocks, pins, timer, UART, SPI and USB controller (usb.h), and enable
 * their interrupts. */
void chip_start(void);
/* At least 8 characters that differ from chip to chip, and a zero. */
void chip_unique_id(char text[17]);

/* A free-running clock of CHIP_TICK_HZ. It wraps around at 2^32. */
uint32_t chip_ticks(void);
/* After `us` microseconds, chip_alarm calls card_alarm once, and chip_wake
 * wakes the core once. 0 cancels. */
void chip_alarm(uint32_t us);
void chip_wake(uint32_t us);

/* SPI clock of the card: at most 400 kHz, or full speed. */
void chip_spi_speed(bool fast);
void chip_spi_select(bool selected);
/* Exchange 1 to CHIP_EXCHANGE_MAX bytes by DMA, then call card_exchanged from
 * an interrupt. If `out` is NULL, 0xff is sent. If `in` is NULL, received bytes
 * are dropped. The CRC-16 of `out`, or else of `in`, is computed on the way,
 * with `crc` as its start value. */
void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size,
                       uint16_t crc);
/* That CRC, after card_exchanged. */
uint16_t chip_spi_crc(void);

/* The UART. _receive takes at most `size` received bytes and returns their
 * number. _send returns when the last byte is on its way. */
uint32_t chip_uart_receive(uint8_t *data, uint32_t size);
bool chip_uart_waiting(void);
void chip_uart_send(const uint8_t *data, uint32_t size);
/* After a fault: send without interrupts. */
void chip_last_words(const char *text);
/* Reset the chip. */
_Noreturn void chip_restart(void);

/* Lock out all interrupts. Returns the previous state, for chip_unlock. */
#ifdef __arm__
static inline uint32_t chip_lock(void) {
  uint32_t was;
  __asm volatile("mrs %0, primask\n cpsid i" : "=r"(was)::"memory");
  return was;
}
static inline void chip_unlock(uint32_t was) {
  __asm volatile("msr primask, %0" ::"r"(was) : "memory");
}
/* Sleep while interrupts are locked out; a pending one still wakes the core. */
static inline void chip_sleep(void) {
  __asm volatile("dsb\n wfi" ::: "memory");
}
#else /* tests on another processor provide these */
uint32_t chip_lock(void);
void chip_unlock(uint32_t was);
void chip_sleep(void);
#endif

/* Lock out the lane's interrupts, but not the UART's: a lock may last longer
 * than a byte on the line. */
uint32_t chip_lock_lane(void);
void chip_unlock_lane(uint32_t was);

/* Called by the chip from interrupts; defined in sd_bus.c. */
void card_exchanged(void);
void card_alarm(void);

#endif
