/* One use, or misuse, of the SAM D21's peripherals, by number. */
#include "samd21.h"

struct descriptor {
  uint16_t control, count;
  uint32_t source, destination, next;
};

static struct descriptor base[12] __attribute__((aligned(16)));
static struct descriptor back[12] __attribute__((aligned(16)));
static struct descriptor more __attribute__((aligned(16)));
static uint8_t buffer[520];
static volatile uint32_t done;

static volatile uint8_t last;

void irq14_handler(void) { /* SERCOM5: echo, one more */
  uint8_t byte = (uint8_t)SERCOM(5, DATA);
  last = byte;
#if CASE == 7
  SERCOM8(5, 0x14) = 4; /* until the block is written */
  done = 1;
  return;
#endif
  while (!(SERCOM8(5, INTFLAG) & 1))
    ;
  SERCOM(5, DATA) = (uint8_t)(byte + 1);
  if (byte == 0)
    done = 1;
}

void irq6_handler(void) { /* DMAC */
  uint16_t pending = DMAC16(0x20);
  DMAC16(0x20) = pending;
  if ((pending & 15) == 1)
    done = pending >> 8;
}

void irq19_handler(void) { /* TC4: every 50 us */
  TC32(4, 0x18) += 50;
  TC8(4, 0x0e) = 0x10;
  done++;
}

void irq18_handler(void) { /* TC3 */
  TC8(3, 0x0e) = 0xff;
  done++;
}

static void channel(unsigned id, unsigned trigger, uint32_t interrupts) {
  DMAC8(0x3f) = (uint8_t)id;
  DMAC8(0x40) = 0;
  DMAC32(0x44) = trigger << 8 | (trigger ? 2u : 3u) << 22;
  DMAC8(0x4d) = (uint8_t)interrupts;
  barrier();
  DMAC8(0x40) = 2;
}

static void dma_start(void) {
  DMAC32(0x34) = (uint32_t)(uintptr_t)base;
  DMAC32(0x38) = (uint32_t)(uintptr_t)back;
  DMAC16(0x00) = 2 | 0xf << 8;
}

/* Channel 1 receives from SERCOM1 into `buffer`, channel 2 sends 0xff. */
static void dma_read(uint16_t size) {
  static const uint8_t ones = 0xff;
  dma_start();
  base[1] = (struct descriptor){1 | 1 << 11, size, 0x42000c28,
                                (uint32_t)(uintptr_t)buffer + size, 0};
  base[2] =
      (struct descriptor){1, size, (uint32_t)(uintptr_t)&ones, 0x42000c28, 0};
  DMAC16(0x02) = 0x21 << 8; /* CRC of channel 1 */
  DMAC32(0x08) = 0;
  DMAC16(0x00) |= 4;
  channel(1, 3, 2);
  channel(2, 4, 0);
}

static const char text[16] __attribute__((aligned(4))) = "bits of a tensor";

/* Let the CRC unit start from all ones. */
static void crc_start(unsigned control) {
  DMAC16(0x00) = 0;
  DMAC16(0x02) = (uint16_t)control;
  DMAC32(0x08) = 0xffffffff;
  DMAC16(0x00) = 4;
}

/* Return the checksum. Until CRCBUSY is cleared, the unit cannot be disabled.
 */
static uint32_t crc_end(void) {
  DMAC8(0x0c) = 1;
  return DMAC32(0x08);
}

static uint32_t timer_count(void) {
  TC16(4, 0x02) = 1 << 15 | 0x10;
  while (TC8(4, 0x0f) & 0x80)
    ;
  return TC32(4, 0x10);
}

static void timer_start(void) {
  PM_APBCMASK |= 1 << 12 | 1 << 13;
  clock_channel(0x1c, 3);
  TC16(4, 0) = 2 << 2 | 4 << 8; /* 32 bits, 16 MHz / 16 */
  TC16(4, 0) |= 2;
}

int main(void) {
#if CASE != 20
  clock_48mhz();
#endif
#if CASE == 1 /* the timer against SysTick */
  timer_start();
  SYST_RVR = 48000 - 1;
  SYST_CVR = 0;
  SYST_CSR = 5;
  uint32_t from = timer_count();
  for (int i = 0; i < 10; i++)
    while (!(SYST_CSR & 1 << 16))
      ;
  print_hex(timer_count() - from);
#elif CASE == 2 /* UART echo from interrupts, asleep in between */
  uart_start();
  SERCOM8(5, INTENSET) = 4;
  NVIC_ISER = 1 << 14;
  wait_for(&done, 1);
  while (!(SERCOM8(5, INTFLAG) & 2))
    ;
#elif CASE == 3 /* a block from the card by DMA, with its CRC */
  print_hex(sd_start());
  print_hex(sd_command(17, 3, 1));
  while (spi_swap(0xff) != 0xfe)
    ;
  NVIC_ISER = 1 << 6;
  dma_read(514);
  wait_for(&done, 1);
  print_hex(done);
  print_hex(DMAC32(0x08)); /* over data and CRC: zero */
  uint32_t sum = 0;
  for (int i = 0; i < 512; i++)
    sum = sum * 31 + buffer[i];
  print_hex(sum);
#elif CASE == 4 /* a one-shot timer wakes the core */
  PM_APBCMASK |= 1 << 11;
  clock_channel(0x1b, 3);
  timer_start();
  NVIC_ISER = 1 << 18;
  TC16(3, 0) = 1 << 5 | 4 << 8;
  TC16(3, 0x18) = 999;
  TC8(3, 0x05) = 4;
  TC8(3, 0x0d) = 1;
  TC16(3, 0) |= 2;
  uint32_t from = timer_count();
  wait_for(&done, 1);
  print_hex(timer_count() - from);
  print_hex(TC8(3, 0x0f));
#elif CASE == 5 /* linked descriptors, started by software */
  static uint32_t from[4] = {1, 2, 3, 4}, to[4];
  dma_start();
  base[1] = (struct descriptor){
      1 | 2 << 8 | 3 << 10, 2, (uint32_t)(uintptr_t)(from + 2),
      (uint32_t)(uintptr_t)(to + 2), (uint32_t)(uintptr_t)&more};
  more = (struct descriptor){1 | 2 << 8 | 3 << 10, 2,
                             (uint32_t)(uintptr_t)(from + 4),
                             (uint32_t)(uintptr_t)(to + 4), 0};
  NVIC_ISER = 1 << 6;
  channel(1, 0, 2);
  DMAC32(0x10) = 1 << 1;
  wait_for(&done, 1);
  print_hex(to[0] << 24 | to[1] << 16 | to[2] << 8 | to[3]);
#elif CASE == 6 /* echo for ever */
  uart_start();
  SERCOM8(5, INTENSET) = 4;
  NVIC_ISER = 1 << 14;
  for (;;)
    __asm volatile("wfi");
#elif CASE ==                                                                  \
    7 /* a block for every byte but zero; the answer says how it went */
  uart_start();
  sd_start();
  NVIC_ISER = 1 << 14;
  for (;;) {
    done = 0;
    SERCOM8(5, INTENSET) = 4;
    wait_for(&done, 1);
    if (!last)
      continue;
    uint8_t answer = sd_command(24, last, 1);
    if (answer == 0) {
      spi_swap(0xff);
      spi_swap(0xfe);
      for (int i = 0; i < 514; i++)
        spi_swap(last);
      answer = spi_swap(0xff) & 0x1f;
      while (spi_swap(0xff) != 0xff)
        ;
    }
    SERCOM(5, DATA) = answer;
  }
#elif CASE == 8 /* no compare is lost while the timer is being read */
  timer_start();
  TC32(4, 0x18) = 50;
  TC8(4, 0x0d) = 0x10;
  NVIC_ISER = 1 << 19;
  while (timer_count() < 10020)
    ;
  print_hex(done);
#elif CASE == 20
  clock_48mhz();
  NVM_CTRLB = 0;
#elif CASE == 21
  SERCOM(5, CTRLA) = 0;
#elif CASE == 22
  PM_APBCMASK |= 1 << 7;
  SERCOM(5, CTRLA) = 1u << 2 | 1u << 30;
  SERCOM(5, CTRLA) |= 2;
#elif CASE == 23
  uart_start();
  SERCOM(5, DATA) = 1;
  SERCOM(5, DATA) = 2;
  SERCOM(5, DATA) = 3;
#elif CASE == 24
  uart_start();
  SERCOM16(5, BAUD) = 4;
#elif CASE == 25
  spi_start(0);
#elif CASE == 26
  REG32(0x42004000) = 1;
#elif CASE == 27
  dma_start();
  base[2] = base[1] = (struct descriptor){1, 2, (uint32_t)(uintptr_t)buffer,
                                          (uint32_t)(uintptr_t)buffer + 8,
                                          (uint32_t)(uintptr_t)&more};
  channel(2, 0, 0);
  channel(1, 0, 0);
#elif CASE == 28
  dma_start();
  base[1] =
      (struct descriptor){1, 4, 0x10000000, (uint32_t)(uintptr_t)buffer, 0};
  channel(1, 0, 0);
  DMAC32(0x10) = 1 << 1;
  for (volatile int i = 0; i < 100; i++)
    ;
#elif CASE == 29
  sercom_clock(5);
  SERCOM(5, CTRLA) = 1u << 2 | 1u << 13 | 1u << 16 | 3u << 20 | 1u << 30;
  SERCOM(5, CTRLA) |= 2;
#elif CASE == 30
  dfll_sync();
  SYSCTRL_DFLLCTRL = 1 << 7;
  for (volatile int i = 0; i < 100; i++)
    ;
  SYSCTRL_DFLLCTRL = 1 << 1 | 1 << 2;
#elif CASE == 39 /* the second of two writes of a DFLL register is lost */
  dfll_sync();
  SYSCTRL_DFLLMUL = 1;
  SYSCTRL_DFLLMUL = 2;
  print_hex(SYSCTRL_DFLLMUL);
  dfll_sync();
  SYSCTRL_DFLLMUL = 3;
  print_hex(SYSCTRL_DFLLMUL);
#elif CASE == 40 /* USB's clock recovery with a multiplier for the crystal */
  dfll_sync();
  SYSCTRL_DFLLCTRL = 1 << 1 | 1 << 2 | 1 << 5;
#elif CASE == 31 /* COUNT without a read request keeps its old value */
  timer_start();
  for (volatile int i = 0; i < 100; i++)
    ;
  print_hex(TC32(4, 0x10));
#elif CASE == 33 /* CRC-32 of words, at once and in two parts */
  const volatile uint32_t *word = (const uint32_t *)(const void *)text;
  crc_start(1 << 8 | 1 << 2 | 2);
  for (int i = 0; i < 4; i++)
    DMAC32(0x04) = word[i];
  print_hex(crc_end());
  crc_start(1 << 8 | 1 << 2 | 2);
  DMAC32(0x04) = word[0];
  DMAC32(0x04) = word[1];
  uint32_t part = crc_end();
  crc_start(1 << 8 | 1 << 2 | 2);
  DMAC32(0x04) = word[2] ^ part;
  DMAC32(0x04) = word[3];
  print_hex(crc_end());
#elif CASE == 34 /* the same of bytes, and CRC-16 */
  for (unsigned polynomial = 0; polynomial < 2; polynomial++) {
    crc_start(1 << 8 | polynomial << 2);
    for (int i = 0; i < 16; i++)
      DMAC32(0x04) = (uint8_t)text[i];
    print_hex(crc_end());
  }
#elif CASE == 35 /* the CRC unit does not read CRCDATAIN */
  DMAC32(0x04) = 1;
#elif CASE == 36 /* CRCDATAIN is written faster than four cycles a word */
  crc_start(1 << 8 | 1 << 2 | 2);
  __asm volatile(".rept 32\n str %0, [%1]\n .endr" ::"l"(1), "l"(0x41004804)
                 : "memory");
#elif CASE == 37 /* CRCCHKSUM is enable-protected */
  crc_start(1 << 8 | 1 << 2 | 2);
  DMAC32(0x08) = 0;
#elif CASE == 38 /* CRCBUSY has no clear meaning with the I/O interface */
  crc_start(1 << 8 | 1 << 2 | 2);
  print_hex(DMAC8(0x0c));
#elif CASE == 62 /* the level of the brown-out detector changes at once */
  REG32(0x40000834) = 39 << 16 | 2;
#elif CASE == 60 /* a busy CRC unit stays enabled, whatever CTRL is */
  crc_start(1 << 8);
  DMAC32(0x04) = 1;
  DMAC16(0x00) = 0;
  DMAC16(0x02) = 0x21 << 8;
#elif CASE == 61 /* the checksum of a busy CRC unit is read */
  crc_start(1 << 8);
  DMAC32(0x04) = 1;
  print_hex(DMAC32(0x08));
#elif CASE == 32 /* serial number words */
  print_hex(REG32(0x0080a00c));
  print_hex(REG32(0x0080a048));
#endif
  return 0;
}
