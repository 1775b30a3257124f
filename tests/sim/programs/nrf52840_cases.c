/* One use, or misuse, of the nRF52840's peripherals, by number. */
#include "test.h"

#define CLOCK(offset) REG32(0x40000000 + (offset))
#define NVMC_ICACHECNF REG32(0x4001e540)
#define P1(offset) REG32(0x50000300 + (offset))
#define UARTE(offset) REG32(0x40002000 + (offset))
#define SPIM2(offset) REG32(0x40023000 + (offset))
#define SPIM3(offset) REG32(0x4002f000 + (offset))
#define TIMER(n, offset) REG32(0x40008000 + 0x1000 * (n) + (offset))
#define SELECT (1u << 12)

static uint8_t buffer[520], received[2];
static volatile uint32_t done, turn, early;

/* A block of RAM in which nothing else lies. */
#define BOUNCE ((volatile uint8_t *)0x20008000)

static uint32_t address(const volatile void *pointer) {
  return (uint32_t)(uintptr_t)pointer;
}

void irq2_handler(void) { /* UARTE: one byte into the buffer, one higher */
  if (UARTE(0x110)) {
    UARTE(0x110) = 0;
    uint8_t byte = received[turn & 1];
    buffer[turn++] = (uint8_t)(byte + 1);
    if (byte == 0)
      done = 1;
  }
  if (UARTE(0x14c)) { /* RXSTARTED: the next buffer may be given */
    UARTE(0x14c) = 0;
    UARTE(0x534) = address(&received[(turn + 1) & 1]);
  }
}

void irq47_handler(void) {
  SPIM3(0x118) = 0;
  done = 1;
}

void irq8_handler(void) {
  TIMER(0, 0x140) = 0;
  done++;
}

static void timer_start(unsigned n) {
  TIMER(n, 0x508) = 3;
  TIMER(n, 0x510) = 4; /* 1 MHz */
  TIMER(n, 0x000) = 1;
}

static uint32_t timer_count(unsigned n) {
  TIMER(n, 0x040) = 1;
  return TIMER(n, 0x540);
}

static void crystal_start(void) {
  CLOCK(0x100) = 0;
  CLOCK(0x000) = 1;
  while (!CLOCK(0x100))
    ;
}

static void uart_start(void) {
  crystal_start();
  UARTE(0x50c) = 6;
  UARTE(0x514) = 8;
  UARTE(0x524) = 0x10000000; /* 1 Mbaud */
  UARTE(0x500) = 8;
  UARTE(0x304) = 1 << 4 | 1 << 19;
  UARTE(0x200) = 1 << 5;
  UARTE(0x534) = address(received);
  UARTE(0x538) = 1;
  UARTE(0x000) = 1;
}

static void spi_start(uint32_t frequency) {
  REG32(0x50000a00 + 4 * 15) = 0x301; /* outputs, high drive */
  REG32(0x50000a00 + 4 * 13) = 0x301;
  REG32(0x50000a00 + 4 * 14) = 3 << 2; /* pull-up */
  SPIM3(0x508) = 47;
  SPIM3(0x50c) = 45;
  SPIM3(0x510) = 46;
  SPIM3(0x524) = frequency;
  SPIM3(0x5c0) = 0xff;
  SPIM3(0x500) = 7;
}

static void spi(uint32_t to, uint32_t in, uint32_t from, uint32_t out) {
  SPIM3(0x534) = to;
  SPIM3(0x538) = in;
  SPIM3(0x544) = from;
  SPIM3(0x548) = out;
  SPIM3(0x118) = 0;
  SPIM3(0x010) = 1;
}

static uint8_t spi_read(void) {
  spi(address(buffer), 1, 0, 0);
  while (!SPIM3(0x118))
    ;
  return buffer[0];
}

static uint8_t sd_command(unsigned index, uint32_t argument, uint8_t crc) {
  spi_read();
  BOUNCE[0] = (uint8_t)(0x40 | index);
  for (int i = 0; i < 4; i++)
    BOUNCE[1 + i] = (uint8_t)(argument >> (24 - 8 * i));
  BOUNCE[5] = crc;
  spi(0, 0, address(BOUNCE), 6);
  while (!SPIM3(0x118))
    ;
  for (int i = 0; i < 9; i++) {
    uint8_t answer = spi_read();
    if (answer != 0xff)
      return answer;
  }
  return 0xff;
}

static uint32_t sd_start(void) {
  P1(0x508) = SELECT;
  P1(0x518) = SELECT;
  spi_start(0x04000000);
  for (int i = 0; i < 10; i++)
    spi_read();
  P1(0x50c) = SELECT;
  if (sd_command(0, 0, 0x95) != 1 || sd_command(8, 0x1aa, 0x87) != 1)
    return 0;
  for (int i = 0; i < 4; i++)
    spi_read();
  do
    sd_command(55, 0, 1);
  while (sd_command(41, 1u << 30, 1));
  if (sd_command(58, 0, 1))
    return 0;
  uint32_t ocr = 0;
  for (int i = 0; i < 4; i++)
    ocr = ocr << 8 | spi_read();
  SPIM3(0x524) = 0x0a000000; /* 16 MHz */
  return ocr;
}

int main(void) {
  NVMC_ICACHECNF = 1;
#if CASE == 1 /* the timer against SysTick */
  timer_start(1);
  SYST_RVR = 64000 - 1;
  SYST_CVR = 0;
  SYST_CSR = 5;
  uint32_t from = timer_count(1);
  for (int i = 0; i < 10; i++)
    while (!(SYST_CSR & 1 << 16))
      ;
  print_hex(timer_count(1) - from);
#elif CASE == 2  /* UART echo */
  NVIC_ISER = 1 << 2;
  uart_start();
  wait_for(&done, 1);
  UARTE(0x544) = address(buffer);
  UARTE(0x548) = turn;
  UARTE(0x008) = 1;
  while (!UARTE(0x120))
    ;
#elif CASE == 3  /* a block from the card by DMA while the core sleeps */
  print_hex(sd_start());
  print_hex(sd_command(17, 3, 1));
  while (spi_read() != 0xfe)
    ;
  SPIM3(0x118) = 0;
  SPIM3(0x304) = 1 << 6;
  REG32(0xe000e104) = 1 << 15;
  spi(address(buffer), 514, 0, 0);
  wait_for(&done, 1);
  uint32_t sum = 0;
  for (int i = 0; i < 512; i++)
    sum = sum * 31 + buffer[i];
  print_hex(sum);
  print_hex(SPIM3(0x53c));
#elif CASE == 4  /* compare with clear: every 250 us */
  TIMER(0, 0x540) = 250;
  TIMER(0, 0x200) = 1;
  TIMER(0, 0x304) = 1 << 16;
  NVIC_ISER = 1 << 8;
  timer_start(1);
  timer_start(0);
  uint32_t from = timer_count(1);
  wait_for(&done, 8);
  print_hex(timer_count(1) - from);
#elif CASE == 5  /* the crystal */
  print_hex(CLOCK(0x40c));
  crystal_start();
  print_hex(CLOCK(0x40c));
  print_hex(REG32(0x10000060));
#elif CASE == 6  /* compare flags without interrupts */
  TIMER(1, 0x544) = 100;
  timer_start(1);
  print_hex(TIMER(1, 0x144));
  while (timer_count(1) < 150)
    ;
  print_hex(TIMER(1, 0x144));
  print_hex(TIMER(1, 0x148) | TIMER(1, 0x14c) << 1);
#elif CASE == 7  /* no compare is lost while the timer is being read */
  TIMER(0, 0x540) = 50;
  TIMER(0, 0x200) = 1;
  TIMER(0, 0x304) = 1 << 16;
  NVIC_ISER = 1 << 8;
  timer_start(1);
  timer_start(0);
  while (timer_count(1) < 10000) {
    TIMER(0, 0x044) = 1;
    early += TIMER(0, 0x544) + TIMER(0, 0x140);
  }
  print_hex(done);
#elif CASE == 20 /* SPIM3 sends from where variables lie */
  spi_start(0x0a000000);
  spi(0, 0, address(buffer), 64);
  while (!SPIM3(0x118))
    early++;
#elif CASE == 21 /* all above 64 KiB is one block */
  spi_start(0x0a000000);
  spi(0, 0, 0x20010000, 64);
  while (!SPIM3(0x118))
    REG32(0x2003fff0) = 1;
#elif CASE == 22
  static const uint8_t in_flash[4] = {1, 2, 3, 4};
  spi_start(0x0a000000);
  spi(0, 0, address(in_flash), 4);
#elif CASE == 23
  SPIM2(0x508) = 47;
  SPIM2(0x50c) = 45;
  SPIM2(0x510) = 46;
  SPIM2(0x500) = 7;
  SPIM2(0x524) = 0x0a000000;
  SPIM2(0x010) = 1;
#elif CASE == 24
  spi_start(0x0a000000);
  SPIM3(0x50c) = 44;
  spi(0, 0, address(BOUNCE), 4);
#elif CASE == 25
  SPIM3(0x010) = 1;
#elif CASE == 26
  REG32(0x4000d000) = 1;
#elif CASE == 27
  UARTE(0x008) = 1;
#elif CASE == 28
  REG32(0x4001e50c) = 1; /* NVMC.ERASEALL */
#elif CASE == 29
  SPIM3(0x524) = 0x0a000000;
  REG8(0x4002f500) = 7;
#elif CASE == 31 /* the flash is written while POFCON is enabled */
  REG32(0x40000510) = 1;
  REG32(0x4001e504) = 1;
  REG32(0x80000) = 0;
#elif CASE == 30 /* a bounce block that nobody touches is fine */
  spi_start(0x0a000000);
  BOUNCE[0] = 0x55;
  spi(0, 0, address(BOUNCE), 2000);
  while (!SPIM3(0x118))
    early++;
  BOUNCE[0] = 0x66;
  print_hex(BOUNCE[0] << 8 | (early > 10));
#endif
  return 0;
}
