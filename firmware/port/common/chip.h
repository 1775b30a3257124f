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

/* chip_cycles returns the core's SysTick. It counts cycles down, wraps around
 * after CHIP_CYCLES_MASK, and may stop while the core sleeps. */
#define CHIP_CYCLES_MASK 0xffffffu
extern const uint8_t chip_cycles_per_tick;

/* Set the SPI clock of the card, and return it in kHz: at most 400 kHz for 0,
 * then 1, 4 and 8 MHz, and for CHIP_SPI_FASTEST the highest that the chip has.
 * The card is not selected. */
enum { CHIP_SPI_FASTEST = 4 };
uint16_t chip_spi_speed(unsigned level);
void chip_spi_select(bool selected);
/* Exchange 1 to CHIP_EXCHANGE_MAX bytes by DMA, then call card_exchanged from
 * an interrupt. If `out` is NULL, 0xff is sent. If `in` is NULL, received bytes
 * are dropped. */
void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size);
/* Send a byte 0xff, `token` and a block of POET_BLOCK bytes in the same way. */
void chip_spi_send_block(uint8_t token, const uint8_t *out);
/* Receive a block of POET_BLOCK bytes in the same way. Its first `have` bytes
 * are at `from` already, at `in` or after it, and at least one byte is missing.
 */
void chip_spi_receive_block(uint8_t *in, const uint8_t *from, uint32_t have);
/* Return the CRC-16 of the latest block, once card_exchanged has been called
 * for it. */
uint16_t chip_spi_crc(void);

/* Continue a CRC-32 as poet_crc does. Only the lane's interrupts call it. */
uint32_t chip_crc(uint32_t crc, const void *data, uint32_t size);
/* True if chip_crc must not be called while a block is sent or received. */
extern const bool chip_crc_excludes_blocks;

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
/* Restart the watchdog's time. It runs from chip_start on. */
void chip_feed_watchdog(void);
/* Called by the watchdog's interrupt, with the interrupted program counter and
 * its link register. */
void chip_watchdog_bites(uint32_t at, uint32_t from);
/* Switch the board's LED. */
void chip_led(bool on);
/* Return why the chip was reset (POET_RESET_*), and forget it. */
uint8_t chip_reset_cause(void);
/* Return false if the supply is too low to write to a card, or was since the
 * last call. */
bool chip_supply_suffices(void);
/* Return true while an exchange of chip_spi_exchange is not finished. */
bool chip_spi_moves(void);
/* Reset the chip. */
_Noreturn void chip_restart(void);

/* The chip's own flash. Program BOARD_FLASH_PROGRAM_BYTES of erased flash, or
 * erase `size_bytes`, which are one erase unit of BOARD_FLASH_ERASE_BLOCKS
 * blocks. Both functions return when the flash is no longer busy. */
void chip_flash_program(const uint32_t *to, const uint32_t *words);
void chip_flash_erase(const uint32_t *unit, uint32_t size_bytes);

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
/* Let pending interrupts run, and lock them out again. Without the ISB, the
 * core may take none of them in between (Arm application note 321). */
static inline void chip_let_interrupts_run(void) {
  __asm volatile("cpsie i\n isb\n cpsid i" ::: "memory");
}
/* Call this before a store that starts a DMA or a reset: earlier stores to RAM
 * must come first (Arm application note 321). */
static inline void chip_finish_stores(void) {
  __asm volatile("dsb" ::: "memory");
}
/* Sleep while interrupts are locked out. A pending interrupt still wakes the
 * core. */
static inline void chip_sleep(void) {
  __asm volatile("dsb\n wfi" ::: "memory");
}
#define CHIP_SYSTICK ((volatile uint32_t *)0xe000e010u)
static inline void chip_start_cycles(void) {
  CHIP_SYSTICK[1] = CHIP_CYCLES_MASK;
  CHIP_SYSTICK[0] = 5; /* the core's clock, no interrupt */
}
static inline uint32_t chip_cycles(void) {
  return CHIP_SYSTICK[2];
}
#else /* on other processors, the tests define these */
uint32_t chip_lock(void);
void chip_unlock(uint32_t was);
void chip_let_interrupts_run(void);
void chip_sleep(void);
uint32_t chip_cycles(void);
#endif

/* Lock out the interrupts that run the transfer lane (lane.c), but not that of
 * the UART: the lock may last longer than the UART takes to receive a byte. */
uint32_t chip_lock_lane(void);
void chip_unlock_lane(uint32_t was);

/* The chip's interrupts call these functions, which sd_bus.c defines. */
void card_exchanged(void);
void card_alarm(void);

#endif
