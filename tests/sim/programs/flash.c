/* The chip's own flash: one use, or misuse, by number. CHIP 21 is the SAM D21,
   52 the nRF52840. The block AREA lies after every program. */
#if CHIP == 21
#include "samd21.h"
#define NVM16(offset) REG16(0x41004000 + (offset))
#define NVM8(offset) REG8(0x41004000 + (offset))
#define NVM32(offset) REG32(0x41004000 + (offset))
#else
#include "test.h"
#define NVMC(offset) REG32(0x4001e000 + (offset))
#define TIMER(offset) REG32(0x40008000 + (offset))
#endif

#define AREA 0x28000u
#define WORDS ((volatile uint32_t *)AREA)

static void clock_start(void) {
#if CHIP == 21
  clock_48mhz();
  NVM32(4) |= 1 << 7; /* MANW */
#else
  TIMER(0x508) = 3;
  TIMER(0x510) = 4; /* 1 MHz */
  TIMER(0x000) = 1;
#endif
  SYST_RVR = 0xffffff;
  SYST_CVR = 0;
  SYST_CSR = 5;
  while (!SYST_CVR)
    ;
}

static uint32_t microseconds(void) {
#if CHIP == 21
  return (0xffffff - SYST_CVR) / 48;
#else
  TIMER(0x040) = 1;
  return TIMER(0x540);
#endif
}

static void erase(uint32_t address) {
#if CHIP == 21
  NVM32(0x1c) = address / 2;
  NVM16(0) = 0xa502;
  while (!(NVM8(0x14) & 1))
    ;
#else
  NVMC(0x504) = 2;
  NVMC(0x508) = address;
  while (!NVMC(0x400))
    ;
  NVMC(0x504) = 0;
#endif
}

/* Write a page of 64 bytes, or 16 words. */
static void write(uint32_t address, uint32_t first) {
  volatile uint32_t *to = (volatile uint32_t *)(uintptr_t)address;
#if CHIP == 21
  NVM16(0) = 0xa544;
  for (uint32_t i = 0; i < 16; i++)
    to[i] = first + i;
  NVM16(0) = 0xa504;
  while (!(NVM8(0x14) & 1))
    ;
#else
  NVMC(0x504) = 1;
  for (uint32_t i = 0; i < 16; i++) {
    to[i] = first + i;
    while (!NVMC(0x400))
      ;
  }
  NVMC(0x504) = 0;
#endif
}

/* Without an erase in between, a write can only clear bits. */
static void wear(uint32_t times) {
  erase(AREA);
  for (uint32_t i = 0; i < times; i++)
    write(AREA, 0xffffff00);
}

#if CASE == 5
__attribute__((section(".ramcode"), noinline)) static uint32_t from_ram(void) {
  uint32_t polls = 0;
#if CHIP == 21
  NVM32(0x1c) = AREA / 2;
  NVM16(0) = 0xa502;
  while (!(NVM8(0x14) & 1))
    polls++;
#else
  NVMC(0x504) = 2;
  NVMC(0x508) = AREA;
  while (!NVMC(0x400))
    polls++;
#endif
  return polls;
}
#endif

int main(void) {
  clock_start();
#if CASE == 1 /* content and time of an erase and a write */
  const uint32_t begin = microseconds();
  erase(AREA);
  const uint32_t erased = microseconds();
  print_hex(WORDS[0]);
  const uint32_t then = microseconds();
  write(AREA, 0x1000);
  print_hex(microseconds() - then);
  print_hex(erased - begin);
  print_hex(WORDS[15]);
  write(AREA, 0xffff0fff); /* 0x1000 & 0xffff0fff */
  print_hex(WORDS[0]);
  erase(AREA);
  print_hex(WORDS[0]);
#elif CASE == 2 /* half of the program's bytes are 0 afterwards */
  erase(AREA);
  write(AREA, 0x2000);
  print_hex(WORDS[1]);
#elif CASE == 3
  wear(ALLOWED);
  print_hex(WORDS[1]);
#elif CASE == 4
  wear(ALLOWED + 1);
#elif CASE == 5  /* the program goes on in RAM while the flash is busy */
  print_hex(from_ram() > 100);
#elif CASE == 6 /* an erase in parts of 8 ms, then of 10 ms */
  erase(AREA);
  write(AREA, 0x1000);
  NVMC(0x504) = 2;
  for (uint32_t parts = 1; WORDS[0] != 0xffffffff; parts++) {
    const uint32_t begin = microseconds();
    NVMC(0x51c) = parts <= 5 ? 8 : 10;
    NVMC(0x518) = AREA;
    while (!NVMC(0x400))
      ;
    print_hex(microseconds() - begin);
  }
  NVMC(0x504) = 0;
  write(AREA, 0x1000);
  print_hex(WORDS[0]);
#elif CASE == 25 || CASE == 26 /* a page that is erased in part */
  NVMC(0x504) = 2;
  for (uint32_t parts = 0; parts < 8; parts++) { /* 10 ms after a reset */
    NVMC(0x518) = AREA;
    while (!NVMC(0x400))
      ;
  }
#if CASE == 25
  write(AREA, 1);
#else
  NVMC(0x508) = AREA + 4096;
#endif
#elif CASE == 20 /* the program itself */
  erase((uint32_t)(uintptr_t)main & ~4095u);
#elif CASE == 21 /* a byte */
  *(volatile uint8_t *)AREA = 1;
#elif CASE == 22
#if CHIP == 21 /* the buffer holds another page */
  NVM16(0) = 0xa544;
  WORDS[0] = 1;
  WORDS[16] = 1;
#else          /* not enabled */
  WORDS[0] = 1;
#endif
#elif CASE == 23
#if CHIP == 21 /* a wrong key */
  NVM32(0x1c) = AREA / 2;
  NVM16(0) = 0x5a02;
  print_hex(NVM16(0x18));
  print_hex(NVM8(0x14));
#else
  NVMC(0x508) = AREA;
#endif
#elif CASE == 24
#if CHIP == 21 /* a page that was written, and not cleared from the buffer */
  write(AREA, 1);
  WORDS[0] = 1;
#else
  NVMC(0x504) = 2;
  NVMC(0x508) = AREA + 4;
#endif
#endif
  return 0;
}
