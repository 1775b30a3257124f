/*
 * chip.c - SAM D21: clocks, timer and UART. Numbers of sections are in
 * registers.h.
 *
 * State: `ring`, the bytes that the UART has received; the UART's interrupt
 * writes it and the thread reads it. Everything else is in registers.
 *
 * Order at start: the watchdog before anything that could wait for ever; flash
 * wait states before the fast clock, the crystal before the DFLL that locks to
 * it, the DFLL before the generators that use it. Most registers cross clock
 * domains: a write must be finished (SYNCBUSY) before the next one.
 */
#include "chip.h"

#include "health.h"
#include "parts.h"
#include "pins.h"
#include "registers.h"
#include "ring.h"
#include "startup.h"

enum {
  UART = 5, /* SERCOM5: PB22 is TX (pad 2), PB23 RX (pad 3) */
  UART_TX_PIN = 32 + 22,
  UART_RX_PIN = 32 + 23,
  UART_BAUD = 3, /* 48 MHz / 16 / 3: 1 Mbaud */
  ALARM = 0,     /* compare channels of TC4 */
  WAKE = 1,
  /* shortest time to a match: the counter must not pass the compare value
   * before the value is set and the flag of an old match is cleared. Reading
   * the counter and setting the value wait for the timer's clock. */
  SOONEST_US = 20,
  CRYSTAL_POLL_MS = 20,
  CRYSTAL_POLLS = 200,
  /* About 2.84 V (table 37-21): the flash at 48 MHz with one wait state, and
   * the card, work from 2.7 V on. */
  SUPPLY_LEVEL = 39,
};

static struct ring ring;

/* -- clocks: 48 MHz from the DFLL, locked to the 32 kHz crystal; if the crystal
 * does not start, to the frames of USB -- */

static void gclk_wait(void) {
  while (GCLK_STATUS & GCLK_SYNCBUSY) {
  }
}

static void generator(unsigned number, uint32_t source, unsigned divider) {
  GCLK_GENDIV = number | divider << 8;
  gclk_wait();
  GCLK_GENCTRL = number | source | GCLK_GENEN;
  gclk_wait();
}

void samd21_clock(unsigned channel, unsigned from) {
  GCLK_CLKCTRL = (uint16_t)(channel | from << 8 | GCLK_CLKEN);
  gclk_wait();
}

/* -- watchdog and supply -- */

/* The watchdog's clock has 1,024 Hz, from an oscillator that always runs: its
 * longest period is 16 s. The early warning comes after 8 s. */
static void start_watchdog(void) {
  generator(2, GCLK_SOURCE_OSCULP32K | GCLK_DIVSEL, 4);
  samd21_clock(GCLK_CHANNEL_WDT, 2);
  WDT_CONFIG = WDT_16384_CYCLES;
  WDT_EWCTRL = WDT_8192_CYCLES;
  WDT_INTENSET = WDT_EW;
  WDT_CTRL = WDT_ENABLE;
  samd21_interrupt(IRQ_WDT, BITE_PRIORITY);
}

/* A write takes several periods of the watchdog's clock. A second write in this
 * time would stall the bus, and the write before it has the same effect. No
 * interrupt, which may feed, too, comes between the look and the write. */
void chip_feed_watchdog(void) {
  const uint32_t before = chip_lock();
  if (!(WDT_STATUS & WDT_SYNCBUSY)) {
    WDT_CLEAR = WDT_KEY;
  }
  chip_unlock(before);
}

void chip_watchdog_bites(uint32_t at, uint32_t from) {
  WDT_INTFLAG = WDT_EW;
  health_bites(at, from);
}

uint8_t chip_reset_cause(void) {
  const uint8_t cause = PM_RCAUSE;
  return cause & RCAUSE_POR    ? POET_RESET_power_on
         : cause & RCAUSE_BOD  ? POET_RESET_brown_out
         : cause & RCAUSE_EXT  ? POET_RESET_button
         : cause & RCAUSE_WDT  ? POET_RESET_watchdog
         : cause & RCAUSE_SYST ? POET_RESET_requested
                               : POET_RESET_unknown;
}

/* Writes of BOD33 before this are ignored: 17.6.9.3. */
static void set_brown_out(uint32_t bits) {
  while (!(SYSCTRL_PCLKSR & PCLKSR_B33SRDY)) {
  }
  SYSCTRL_BOD33 = bits;
}

/* Wait until the supply suffices. From then on, reset the chip if it sinks. The
 * detector is disabled before its level and action change, which could reset
 * the chip otherwise: 17.8.14. */
static void watch_supply(void) {
  const uint32_t level = BOD33_LEVEL(SUPPLY_LEVEL) | BOD33_HYST;
  set_brown_out(SYSCTRL_BOD33 & ~BOD33_ENABLE);
  set_brown_out(level);
  set_brown_out(level | BOD33_ENABLE);
  while ((SYSCTRL_PCLKSR & (PCLKSR_BOD33RDY | PCLKSR_BOD33DET)) !=
         PCLKSR_BOD33RDY) {
  }
  set_brown_out(level);
  set_brown_out(level | BOD33_RESET);
  set_brown_out(level | BOD33_RESET | BOD33_ENABLE);
}

/* The detector has not reset the chip, so it suffices if the detector runs. */
bool chip_supply_suffices(void) {
  return (SYSCTRL_PCLKSR & (PCLKSR_BOD33RDY | PCLKSR_BOD33DET)) ==
         PCLKSR_BOD33RDY;
}

/* Wait for about `count` milliseconds, at the 1 MHz after a reset. */
static void wait_ms(uint32_t count) {
  uint32_t loops = count * 250; /* of three cycles, or four with a wait state */
  __asm volatile("1: sub %0, #1\n bne 1b" : "+l"(loops) : : "cc");
}

/* Start the crystal. Return false if it is not stable after 3 to 4 s. */
static bool crystal_runs(void) {
  SYSCTRL_XOSC32K = XOSC32K_STARTUP_2S | XOSC32K_EN32K | XOSC32K_XTALEN;
  SYSCTRL_XOSC32K |= XOSC32K_ENABLE;
  for (int i = 0; i < CRYSTAL_POLLS; i++) {
    wait_ms(CRYSTAL_POLL_MS);
    if (SYSCTRL_PCLKSR & PCLKSR_XOSC32KRDY) {
      return true;
    }
  }
  return false;
}

/* Writes of the DFLL's registers before this are ignored: 17.6.14. */
static void dfll_wait(void) {
  while (!(SYSCTRL_PCLKSR & PCLKSR_DFLLRDY)) {
  }
}

static void lock_to_crystal(void) {
  generator(1, GCLK_SOURCE_XOSC32K, 1);
  samd21_clock(GCLK_CHANNEL_DFLL, 1);
  SYSCTRL_DFLLMUL = 31u << 26 | 511u << 16 | 1465; /* 48 MHz / 32768 Hz */
  dfll_wait();
  SYSCTRL_DFLLCTRL = DFLL_ENABLE | DFLL_MODE;
  while ((SYSCTRL_PCLKSR & PCLKSR_DFLLLCK) != PCLKSR_DFLLLCK) {
  }
}

/* Until USB's frames come, the DFLL has the accuracy of its calibration, which
 * is enough for the UART. */
static void lock_to_usb(void) {
  SYSCTRL_DFLLVAL = DFLL_CALIBRATION >> 26 << 10 | 512;
  dfll_wait();
  SYSCTRL_DFLLMUL = 7u << 26 | 63u << 16 | 48000; /* 48 MHz / 1 kHz */
  dfll_wait();
  SYSCTRL_DFLLCTRL = DFLL_ENABLE | DFLL_MODE | DFLL_USBCRM | DFLL_CCDIS;
}

/* Lock the region of the flash that holds the boot loader, until a reset. */
static void protect_boot_loader(void) {
  while (!(NVMCTRL_INTFLAG & NVMCTRL_READY)) {
  }
  NVMCTRL_ADDR = 0;
  NVMCTRL_CTRLA = NVMCTRL_KEY | NVMCTRL_LOCK_REGION;
  while (!(NVMCTRL_INTFLAG & NVMCTRL_READY)) {
  }
}

static void start_clocks(void) {
  /* 48 MHz needs a flash wait state. MANW keeps stray stores out of flash. */
  NVMCTRL_CTRLB = NVMCTRL_RWS_1 | NVMCTRL_MANW;
  const bool has_crystal = HAS_CRYSTAL && crystal_runs();
  SYSCTRL_DFLLCTRL = DFLL_ENABLE; /* ONDEMAND off first: erratum 1.2.1 */
  dfll_wait();
  if (has_crystal) {
    lock_to_crystal();
  } else {
    lock_to_usb();
  }
  dfll_wait();
  generator(0, GCLK_SOURCE_DFLL, 1);
  generator(3, GCLK_SOURCE_DFLL, 3); /* 16 MHz for the timer */
}

void samd21_pin(unsigned pin, unsigned function, unsigned config) {
  const unsigned shift = pin % 2 * 4;
  PORT_PMUX(pin) =
      (uint8_t)((PORT_PMUX(pin) & ~(15u << shift)) | function << shift);
  PORT_PINCFG(pin) = (uint8_t)(PINCFG_PMUXEN | config);
}

void samd21_interrupt(unsigned irq, unsigned priority) {
  const unsigned shift = irq % 4 * 8;
  NVIC_IPR(irq) = (NVIC_IPR(irq) & ~(0xffu << shift)) | priority << shift;
  NVIC_ISER = 1u << irq;
}

/* ARMv6-M cannot mask interrupts by priority, so disable each interrupt of the
 * lane. The barriers make sure that none of them is taken after this
 * function. */
uint32_t chip_lock_lane(void) {
  const uint32_t lane = 1u << IRQ_DMAC | 1u << IRQ_TC4;
  const uint32_t was = NVIC_ISER & lane;
  NVIC_ICER = lane;
  __asm volatile("dsb\n isb" ::: "memory");
  return was;
}

void chip_unlock_lane(uint32_t was) {
  __asm volatile("" ::: "memory");
  NVIC_ISER = was;
}

/* -- TC4 and TC5: a 32-bit counter at 1 MHz, with alarm and wake-up -- */

static void timer_wait(void) {
  while (TC4_STATUS & TC_SYNCBUSY) {
  }
}

const uint8_t chip_cycles_per_tick = 48;

static void start_timer(void) {
  chip_start_cycles();
  PM_APBCMASK |= APBC_TC4 | APBC_TC5;
  samd21_clock(GCLK_CHANNEL_TC4_TC5, 3);
  TC4_CTRLA = TC_COUNT32 | TC_PRESCALER_16;
  TC4_CTRLA |= TC_ENABLE;
  timer_wait();
  samd21_interrupt(IRQ_TC4, LANE_PRIORITY);
}

/* The program must request a read of the counter and wait for the value. An
 * interrupt in between would start a second request. */
uint32_t chip_ticks(void) {
  const uint32_t was = chip_lock();
  TC4_READREQ = TC_RREQ | 0x10; /* address of COUNT */
  timer_wait();
  const uint32_t ticks = TC4_COUNT;
  chip_unlock(was);
  return ticks;
}

static void compare(unsigned channel, uint32_t us) {
  if (!us) {
    TC4_INTENCLR = (uint8_t)TC_MC(channel);
    return;
  }
  const uint32_t was = chip_lock();
  TC4_CC(channel) = chip_ticks() + (us < SOONEST_US ? SOONEST_US : us);
  timer_wait();
  /* Clear the flag of an old match before the interrupt is enabled. */
  TC4_INTFLAG = (uint8_t)TC_MC(channel);
  TC4_INTENSET = (uint8_t)TC_MC(channel);
  chip_unlock(was);
}

void chip_alarm(uint32_t us) {
  compare(ALARM, us);
}

void chip_wake(uint32_t us) {
  compare(WAKE, us);
}

void tc4_handler(void) {
  const uint8_t flags = TC4_INTFLAG;
  if (flags & TC_MC(WAKE)) {
    TC4_INTENCLR = (uint8_t)TC_MC(WAKE);
    TC4_INTFLAG = (uint8_t)TC_MC(WAKE);
  }
  if ((flags & TC_MC(ALARM)) && (TC4_INTENSET & TC_MC(ALARM))) {
    TC4_INTENCLR = (uint8_t)TC_MC(ALARM);
    TC4_INTFLAG = (uint8_t)TC_MC(ALARM);
    card_alarm(); /* last: it may set the next alarm */
  }
}

/* -- UART -- */

static void start_uart(void) {
  PM_APBCMASK |= APBC_SERCOM(UART);
  samd21_clock(GCLK_CHANNEL_SERCOM(UART), 0);
  samd21_pin(UART_TX_PIN, FUNCTION_D, 0);
  /* Pull-up: an unconnected pin would float and look like data. */
  PORT_OUTSET(UART_RX_PIN / 32) = 1u << UART_RX_PIN % 32;
  samd21_pin(UART_RX_PIN, FUNCTION_D, PINCFG_PULLEN);
  SERCOM_CTRLB(UART) = SERCOM_TXEN | SERCOM_RXEN;
  SERCOM_BAUD16(UART) = UART_BAUD;
  SERCOM_CTRLA(UART) = SERCOM_USART | SERCOM_SAMPR_FRACTIONAL |
                       SERCOM_OUTPUT(1) | SERCOM_INPUT(3) | SERCOM_LSB_FIRST;
  SERCOM_CTRLA(UART) |= SERCOM_ENABLE;
  while (SERCOM_SYNCBUSY(UART)) {
  }
  SERCOM_INTENSET(UART) = SERCOM_RXC;
  samd21_interrupt(IRQ_SERCOM5, LINE_PRIORITY);
}

void sercom5_handler(void) {
  ring_put(&ring, (uint8_t)SERCOM_DATA(UART));
}

bool chip_uart_waiting(void) {
  return ring_holds(&ring);
}

uint32_t chip_uart_receive(uint8_t *data, uint32_t size) {
  return ring_take(&ring, data, size);
}

void chip_uart_drop(void) {
  ring_drop(&ring);
}

void chip_uart_send(const uint8_t *data, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    while (!(SERCOM_INTFLAG(UART) & SERCOM_DRE)) {
    }
    SERCOM_DATA(UART) = data[i];
  }
}

/* -- the rest -- */

void chip_led(bool on) {
  (&PORT_OUTCLR(0))[on] = 1u << LED_PIN; /* OUTSET comes next */
}

void chip_last_words(const char *text) {
  chip_lock();
  while (*text) {
    chip_uart_send((const uint8_t *)text++, 1);
  }
  while (!(SERCOM_INTFLAG(UART) & SERCOM_TXC)) {
  }
}

_Noreturn void chip_restart(void) {
  chip_finish_stores();
  SCB_AIRCR = AIRCR_SYSRESETREQ;
  for (;;) {
  }
}

void chip_unique_id(char text[17]) {
  const uint32_t words[2] = {SERIAL_WORD_0, SERIAL_WORD_3};
  for (int i = 0; i < 16; i++) {
    text[i] = "0123456789abcdef"[words[i / 8] >> (28 - i % 8 * 4) & 15];
  }
  text[16] = 0;
}

void chip_start(void) {
  extern const handler *const vectors[];
  SCB_VTOR = (uint32_t)(uintptr_t)vectors;
  start_watchdog();
  watch_supply();
  protect_boot_loader();
  start_clocks();
  start_timer();
  start_uart();
  samd21_spi_start();
  samd21_usb_start();
}
