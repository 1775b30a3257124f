/*
 * chip.c - nRF52840: clocks, timer and UART of the development kit.
 *
 * State: `ring` holds the bytes that the UART has received. DMA stores the next
 * byte in one of the two bytes of `incoming`; meanwhile the UART's interrupt
 * copies the other byte to `ring`. The thread may change `sending` only while
 * `sent` is true: otherwise DMA reads it.
 *
 * Order: the crystal runs before the UART is started, because the UART needs
 * the accuracy of the crystal. An event register is cleared before the start of
 * the task that sets it, or before its interrupt is enabled; otherwise the new
 * event would be lost.
 */
#include "chip.h"

#include <string.h>

#include "health.h"
#include "parts.h"
#include "registers.h"
#include "ring.h"
#include "startup.h"

enum {
  UART_TX_PIN = 6, /* P0.06 and P0.08 connect to the debugger */
  UART_RX_PIN = 8,
  LED_PIN = 13, /* P0.13, LED1 of the kit: on while the pin is low */
  SEND_BUFFER = 256,
  NOW = 0, /* capture and compare channels of TIMER1 */
  ALARM = 1,
  WAKE = 2,
  SOONEST_US = 2,
  WATCHDOG_PERIOD = 16 * 32768, /* 16 s */
};

static struct ring ring;
static struct {
  uint8_t bytes[2]; /* DMA fills one byte while the interrupt reads the other */
  uint8_t which;    /* the one that DMA fills */
} incoming;

static uint8_t sending[SEND_BUFFER]; /* EasyDMA reads RAM only */
static volatile bool sent = true;

void nrf52840_interrupt(unsigned irq, unsigned priority) {
  NVIC_IPR(irq) = (uint8_t)priority;
  NVIC_ISER(irq / 32) = 1u << irq % 32;
}

/* Mask the interrupts of the lane's priority and of all lower priorities. The
 * interrupt of the UART stays enabled. */
uint32_t chip_lock_lane(void) {
  uint32_t was;
  __asm volatile("mrs %0, basepri\n msr basepri, %1"
                 : "=&r"(was)
                 : "r"(LANE_PRIORITY)
                 : "memory");
  return was;
}

void chip_unlock_lane(uint32_t was) {
  __asm volatile("msr basepri, %0" : : "r"(was) : "memory");
}

static uint32_t address(const volatile void *pointer) {
  return (uint32_t)(uintptr_t)pointer;
}

/* -- watchdog and supply -- */

/* The watchdog cannot be stopped. It keeps its settings over a reset from
 * software, so this may have no effect. */
static void start_watchdog(void) {
  WDT_CONFIG = WDT_RUN_IN_SLEEP; /* and pause while a debugger holds the core */
  WDT_CRV = WATCHDOG_PERIOD - 1;
  WDT_RREN = 1;
  WDT_INTENSET = WDT_INT_TIMEOUT;
  WDT_TASKS_START = 1;
  nrf52840_interrupt(IRQ_WDT, BITE_PRIORITY);
}

void chip_feed_watchdog(void) {
  WDT_RR0 = WDT_KEY;
}

/* The reset follows two periods of 32,768 Hz after the event. */
void chip_watchdog_bites(uint32_t at, uint32_t from) {
  WDT_EVENTS_TIMEOUT = 0;
  health_bites(at, from);
}

/* After power-on and after a brown-out, no bit is set. The button may set other
 * bits, too (anomaly 136). */
uint8_t chip_reset_cause(void) {
  const uint32_t cause = POWER_RESETREAS;
  POWER_RESETREAS = cause;
  return cause & RESETREAS_RESETPIN ? POET_RESET_button
         : cause & RESETREAS_LOCKUP ? POET_RESET_lock_up
         : cause & RESETREAS_DOG    ? POET_RESET_watchdog
         : cause & RESETREAS_SREQ   ? POET_RESET_requested
         : cause                    ? POET_RESET_unknown
                                    : POET_RESET_power_on;
}

/* The kit's nominal supply is 3.0 V; the card works from 2.7 V on. */
static void watch_supply(void) {
  POWER_POFCON = POFCON_2V7;
}

/* The event comes when the supply sinks. Start the comparator again, so that it
 * comes again if the supply is still low. */
bool chip_supply_suffices(void) {
  if (!POWER_EVENTS_POFWARN) {
    return true;
  }
  POWER_POFCON = 0;
  POWER_EVENTS_POFWARN = 0;
  watch_supply();
  return false;
}

/* -- TIMER1: a 32-bit counter at 1 MHz, with alarm and wake-up -- */

const uint8_t chip_cycles_per_tick = 64;

static void start_timer(void) {
  chip_start_cycles();
  TIMER_BITMODE = TIMER_32_BITS;
  TIMER_PRESCALER = 4;
  TIMER_TASKS_START = 1;
  nrf52840_interrupt(IRQ_TIMER1, LANE_PRIORITY);
}

/* Interrupts use the same capture register, so none may come between capture
 * and read. */
uint32_t chip_ticks(void) {
  const uint32_t was = chip_lock();
  TIMER_TASKS_CAPTURE(NOW) = 1;
  const uint32_t ticks = TIMER_CC(NOW);
  chip_unlock(was);
  return ticks;
}

static void compare(unsigned channel, uint32_t us) {
  const uint32_t was = chip_lock();
  TIMER_INTENCLR = TIMER_INT_COMPARE(channel);
  if (us) {
    TIMER_CC(channel) = chip_ticks() + (us < SOONEST_US ? SOONEST_US : us);
    TIMER_EVENTS_COMPARE(channel) = 0;
    TIMER_INTENSET = TIMER_INT_COMPARE(channel);
  }
  chip_unlock(was);
}

void chip_alarm(uint32_t us) {
  compare(ALARM, us);
}

void chip_wake(uint32_t us) {
  compare(WAKE, us);
}

/* If the channel's time has come, disable the channel and return true. */
static bool due(unsigned channel) {
  if (!TIMER_EVENTS_COMPARE(channel) ||
      !(TIMER_INTENSET & TIMER_INT_COMPARE(channel))) {
    return false;
  }
  compare(channel, 0);
  TIMER_EVENTS_COMPARE(channel) = 0;
  return true;
}

void timer1_handler(void) {
  (void)due(WAKE);
  if (due(ALARM)) {
    card_alarm();
  }
}

/* -- UART: buffers of one byte, so that no byte waits for a second one -- */

static void start_uart(void) {
  /* Pull-up: while the debugger is off, the pin would float and look like
   * data. */
  P0_PIN_CNF(UART_RX_PIN) = PIN_CNF_PULL_UP;
  UARTE_PSEL_TXD = UART_TX_PIN;
  UARTE_PSEL_RXD = UART_RX_PIN;
  UARTE_BAUDRATE = UARTE_1MBAUD;
  UARTE_ENABLE = UARTE_ENABLED;
  UARTE_SHORTS = UARTE_ENDRX_STARTRX;
  UARTE_INTENSET = UARTE_INT_ENDRX | UARTE_INT_RXSTARTED | UARTE_INT_ENDTX;
  UARTE_RXD_MAXCNT = 1;
  UARTE_RXD_PTR = address(&incoming.bytes[0]);
  nrf52840_interrupt(IRQ_UARTE0, LINE_PRIORITY);
  UARTE_TASKS_STARTRX = 1;
}

void uarte0_handler(void) {
  if (UARTE_EVENTS_ENDRX) {
    UARTE_EVENTS_ENDRX = 0;
    ring_put(&ring, incoming.bytes[incoming.which]);
    incoming.which ^= 1;
  }
  if (UARTE_EVENTS_RXSTARTED) {
    UARTE_EVENTS_RXSTARTED = 0;
    /* DMA has copied the pointer, so set the pointer for the next byte. */
    UARTE_RXD_PTR = address(&incoming.bytes[incoming.which ^ 1]);
  }
  if (UARTE_EVENTS_ENDTX) {
    UARTE_EVENTS_ENDTX = 0;
    sent = true;
  }
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

static void wait_until_sent(void) {
  const uint32_t was = chip_lock();
  while (!sent) {
    chip_sleep();
    chip_let_interrupts_run();
  }
  chip_unlock(was);
}

static void start_sending(const uint8_t *data, uint32_t size) {
  memcpy(sending, data, size);
  sent = false;
  UARTE_TXD_PTR = address(sending);
  UARTE_TXD_MAXCNT = size;
  chip_finish_stores();
  UARTE_TASKS_STARTTX = 1;
}

void chip_uart_send(const uint8_t *data, uint32_t size) {
  while (size) {
    const uint32_t part = size < SEND_BUFFER ? size : SEND_BUFFER;
    wait_until_sent();
    start_sending(data, part);
    data += part;
    size -= part;
  }
}

/* -- the debug port -- */

/* From revision 3 on, the debug port is closed after each reset, unless both
 * UICR and the program open it. Earlier revisions do not know the value of
 * UICR that opens it. UICR takes effect after a reset. */
static void open_debug_port(void) {
  if (FICR_PART != PART_NRF52840 || FICR_VARIANT < VARIANT_REVISION_3) {
    return;
  }
  if (UICR_APPROTECT == UINT32_MAX) {
    const uint32_t open = UINT32_MAX << 8 | APPROTECT_OPEN;
    chip_flash_program((const uint32_t *)(uintptr_t)&UICR_APPROTECT, &open);
    if (UICR_APPROTECT == open) {
      chip_restart();
    }
  }
  APPROTECT_DISABLE = APPROTECT_OPEN;
}

/* -- the rest -- */

void chip_led(bool on) {
  P0_PIN_CNF(LED_PIN) = on ? PIN_CNF_OUTPUT : PIN_CNF_UNUSED;
}

/* The buffer that is being sent is finished first. The rest of its message is
 * lost, because a reset follows. */
void chip_last_words(const char *text) {
  chip_lock();
  while (!sent && !UARTE_EVENTS_ENDTX) {
  }
  UARTE_EVENTS_ENDTX = 0;
  start_sending((const uint8_t *)text, (uint32_t)strlen(text));
  while (!UARTE_EVENTS_ENDTX) {
  }
}

_Noreturn void chip_restart(void) {
  chip_finish_stores();
  SCB_AIRCR = AIRCR_SYSRESETREQ;
  for (;;) {
  }
}

void chip_unique_id(char text[17]) {
  for (int i = 0; i < 16; i++) {
    text[i] = "0123456789abcdef"[FICR_DEVICEID(i / 8) >> (28 - i % 8 * 4) & 15];
  }
  text[16] = 0;
}

void chip_start(void) {
  extern const handler *const vectors[];
  SCB_VTOR = (uint32_t)(uintptr_t)vectors;
  open_debug_port();
  start_watchdog();
  watch_supply();
  POWER_DCDCEN = 1; /* the kit has the coil; board.toml assumes it */
  NVMC_ICACHECNF = 1;
  CLOCK_EVENTS_HFCLKSTARTED = 0;
  CLOCK_TASKS_HFCLKSTART = 1; /* start the crystal, for the UART */
  while (!CLOCK_EVENTS_HFCLKSTARTED) {
  }
  start_timer();
  start_uart();
  nrf52840_spi_start();
}
