/*
 * chip.h - what the portable part of a bare-metal port wants from its chip.
 * One chip is linked into an image; chip_* are its functions, card_* and
 * board_* are called back from its interrupts, which all have one priority
 * except the UART's, which may be higher.
 */
#ifndef POET_CHIP_H
#define POET_CHIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The board's name, that of its folder in boards/; the build says which. */
#define BOARD_TEXT(name) #name
#define BOARD_NAMED(name) BOARD_TEXT(name)
#define BOARD_NAME BOARD_NAMED(POET_BOARD)

#define CHIP_TICK_HZ 1000000u
#define CHIP_EXCHANGE_MAX 514u

/* Clocks, pins, timer, UART, SPI and USB controller (usb.h), interrupts on. */
void chip_start(void);
/* At least 8 characters that differ from chip to chip, and a zero. */
void chip_unique_id(char text[17]);

/* A free-running clock of CHIP_TICK_HZ. */
uint32_t chip_ticks(void);
/* Call card_alarm after `us`, or wake the core; 0 takes that back. */
void chip_alarm(uint32_t us);
void chip_wake(uint32_t us);

/* The card's wire: at most 400 kHz, or full speed. */
void chip_spi_speed(bool fast);
void chip_spi_select(bool selected);
/* Exchange 1 to CHIP_EXCHANGE_MAX bytes by DMA, then call card_exchanged from
 * an interrupt. No `out`: 0xff is sent; no `in`: what comes is dropped. The
 * CRC-16 of the bytes of `out` (else of `in`) is taken on the way, from `crc`
 * on. */
void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size,
                       uint16_t crc);
/* That CRC, after card_exchanged. */
uint16_t chip_spi_crc(void);

/* The UART: bytes that came in, at most `size` of them; and sending, which
 * returns when the last byte is on its way. */
uint32_t chip_uart_receive(uint8_t *data, uint32_t size);
bool chip_uart_waiting(void);
void chip_uart_send(const uint8_t *data, uint32_t size);
/* After a fault: send without interrupts, then start again. */
void chip_last_words(const char *text);
_Noreturn void chip_restart(void);

/* Sections that no interrupt may enter. Returns what to give back. */
#ifdef __arm__
static inline uint32_t chip_lock(void) {
  uint32_t was;
  __asm volatile("mrs %0, primask\n cpsid i" : "=r"(was)::"memory");
  return was;
}
static inline void chip_unlock(uint32_t was) {
  __asm volatile("msr primask, %0" ::"r"(was) : "memory");
}
/* Sleep with interrupts locked out; they wake the core all the same. */
static inline void chip_sleep(void) {
  __asm volatile("dsb\n wfi" ::: "memory");
}
#else /* a test on another processor has interrupts of its own */
uint32_t chip_lock(void);
void chip_unlock(uint32_t was);
void chip_sleep(void);
#endif

/* Sections that the lane's interrupts may not enter, and the line's may: they
 * may last longer than it takes a byte to come. */
uint32_t chip_lock_lane(void);
void chip_unlock_lane(uint32_t was);

/* Called from interrupts. */
void card_exchanged(void);
void card_alarm(void);

#endif
