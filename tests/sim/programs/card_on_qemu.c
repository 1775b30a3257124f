/* The portable SD driver on QEMU's own SPI card (lm3s6965evb): SSI0 with the
   card selected by PD0. Exchanges are polled; PendSV stands in for the
   interrupts that they end in. */
#include <string.h>

#include "card_parts.h"
#include "chip.h"
#include "poet/records.h"
#include "test.h"

#define SSI(offset) REG32(0x40008000 + (offset)) /* PL022 */
#define RCGC1 REG32(0x400fe104)
#define RCGC2 REG32(0x400fe108)
#define PORT_D(offset) REG32(0x40007000 + (offset))
#define PEND() (ICSR = 1u << 28)

enum { COUNT = 3, FIRST = 5 };

static uint32_t ticks;
static volatile uint32_t ended;
static int result;
static const uint8_t *block; /* the latest one */
static enum { NOTHING, EXCHANGED, ALARM } due;
static uint8_t blocks[COUNT][POET_BLOCK];

uint32_t chip_ticks(void) {
  return ticks++;
}

void chip_alarm(uint32_t us) {
  ticks += us;
  due = us ? ALARM : NOTHING;
  if (us)
    PEND();
}

uint16_t chip_spi_speed(unsigned level) {
  return (uint16_t)level;
}

void chip_spi_select(bool selected) {
  PORT_D(4) = !selected; /* PD0 alone */
}

static uint8_t swap(uint8_t byte) {
  SSI(8) = byte;
  while (!(SSI(12) & 4))
    ;
  return (uint8_t)SSI(8);
}

void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    uint8_t byte = swap(out ? out[i] : 0xff);
    if (in)
      in[i] = byte;
  }
  due = EXCHANGED;
  PEND();
}

void chip_spi_send_block(uint8_t token, const uint8_t *out) {
  swap(0xff);
  swap(token);
  chip_spi_exchange(out, NULL, POET_BLOCK);
  block = out;
}

void chip_spi_receive_block(uint8_t *in, const uint8_t *from, uint32_t have) {
  memmove(in, from, have);
  chip_spi_exchange(NULL, in + have, POET_BLOCK - have);
  block = in;
}

bool chip_supply_suffices(void) {
  return true;
}

uint16_t chip_spi_crc(void) {
  uint32_t crc = 0;
  for (uint32_t i = 0; i < 8 * POET_BLOCK; i++) {
    const uint32_t bit = block[i / 8] >> (7 - i % 8) & 1;
    crc = (crc << 1 & 0xffff) ^ ((crc >> 15 ^ bit) ? 0x1021 : 0);
  }
  return (uint16_t)crc;
}

const bool chip_crc_excludes_blocks = false;

void pendsv_handler(void) {
  int was = due;
  due = NOTHING;
  if (was == EXCHANGED)
    card_exchanged();
  else if (was == ALARM)
    card_alarm();
}

static uint8_t *place(uint32_t index) {
  return blocks[index];
}

static void ignore(uint32_t count) {
  (void)count;
}

static bool go_on(uint32_t index) {
  (void)index;
  return true;
}

static void finished(int error) {
  result = error;
  ended = 1;
}

static int run(uint32_t block, uint32_t count, bool write) {
  static struct card_job job;
  job = (struct card_job){block, count, write, place, ignore, go_on, finished};
  ended = 0;
  card_start(&job);
  while (!ended)
    ;
  return result;
}

int main(void) {
  RCGC1 |= 1 << 4;
  RCGC2 |= 1 << 3;
  PORT_D(0x400) = 1;
  PORT_D(0x51c) = 1;
  SSI(4) = 0;
  SSI(16) = 2;
  SSI(0) = 7;
  SSI(4) = 2;
  /* a retry of a mount: the card gave no SD Status */
  if (run(0, 0, false) || card.job_retries)
    return 1;
  print_hex(card_blocks());
  if (run(FIRST, COUNT, false))
    return 2;
  for (int k = 0; k < COUNT; k++)
    for (unsigned i = 0; i < POET_BLOCK; i++)
      if (blocks[k][i] != (uint8_t)((unsigned)(FIRST + k) * 7 + i * 13))
        return 3;
  for (int k = 0; k < COUNT; k++)
    for (unsigned i = 0; i < POET_BLOCK; i++)
      blocks[k][i] ^= 0xa5;
  if (run(FIRST + 10, COUNT, true))
    return 4;
  if (run(FIRST + 20, 1, true) || run(FIRST + 10, 1, false))
    return 5;
  return blocks[0][1] != (uint8_t)((FIRST * 7 + 13) ^ 0xa5);
}
