/* The chip between driver and card: exchanges take their time on the wire, and
   interrupts come while the processor sleeps. */
#include "bench.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"
#include "chip.h"
#include "flash.h"
#include "health.h"
#include "lane.h"
#include "poet/poet.h"
#include "poet/records.h"

enum { SLOW_NS = 20000, FAST_NS = 667, LONGEST_US = 60 * 1000 * 1000 };

struct bench bench;

static struct {
  jmp_buf reset;
  uint64_t byte_ns, alarm_ns;
  bool exchanged, selected;
  const uint8_t *block; /* whose CRC is asked for; NULL: it is `crc` */
  uint16_t crc;
} chip;

const bool chip_crc_excludes_blocks = true;
const uint8_t chip_cycles_per_tick = 1;

void driver_reset(void);

void rule(bool kept, const char *what) {
  if (!kept) {
    fprintf(stderr, "a rule of the driver is broken: %s\n", what);
    abort();
  }
}

/* -- chip.h -- */

uint32_t chip_ticks(void) {
  return (uint32_t)(bench.now_ns / 1000);
}

void chip_alarm(uint32_t us) {
  chip.alarm_ns = us ? bench.now_ns + us * (uint64_t)1000 : 0;
}

uint16_t chip_spi_speed(unsigned level) {
  rule(!chip.selected, "the speed changes while the card is not selected");
  rule(level <= CHIP_SPI_FASTEST, "a clock that the chip has");
  chip.byte_ns = level ? FAST_NS << (CHIP_SPI_FASTEST - level) : SLOW_NS;
  return (uint16_t)level;
}

void chip_spi_select(bool selected) {
  chip.selected = selected;
  sdcard_select(bench.card, selected, bench.now_ns);
}

static uint16_t crc16(uint16_t crc, const uint8_t *bytes, uint32_t size) {
  for (uint32_t i = 0; i < size; i++) {
    crc = (uint16_t)(crc ^ bytes[i] << 8);
    for (int bit = 0; bit < 8; bit++)
      crc = (uint16_t)(crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0));
  }
  return crc;
}

void chip_spi_exchange(const uint8_t *out, uint8_t *in, uint32_t size) {
  uint8_t sent[CHIP_EXCHANGE_MAX], got[CHIP_EXCHANGE_MAX];
  rule(size && size <= CHIP_EXCHANGE_MAX, "exchanges have 1 to 514 bytes");
  rule(!chip.exchanged, "one exchange at a time");
  rule(chip.byte_ns, "the speed is set before the first exchange");
  memset(sent, 0xff, size);
  if (out)
    memcpy(sent, out, size);
  if (bench.from_host)
    bench.from_host(sent, size);
  for (uint32_t i = 0; i < size && bench.bytes != bench.cut_at; i++) {
    bench.now_ns += chip.byte_ns;
    got[i] = sdcard_exchange(bench.card, sent[i], bench.now_ns, chip.byte_ns);
    bench.bytes++;
  }
  if (bench.bytes == bench.cut_at)
    return;
  if (bench.from_card)
    bench.from_card(got, size);
  if (in)
    memcpy(in, got, size);
  chip.exchanged = true;
}

void chip_spi_send_block(uint8_t token, const uint8_t *out) {
  uint8_t sent[2 + POET_BLOCK] = {0xff, token};
  memcpy(sent + 2, out, POET_BLOCK);
  chip_spi_exchange(sent, NULL, sizeof sent);
  chip.block = NULL;
  chip.crc = crc16(0, out, POET_BLOCK);
}

void chip_spi_receive_block(uint8_t *in, const uint8_t *from, uint32_t have) {
  rule(have < POET_BLOCK, "a byte of the block is missing");
  memmove(in, from, have);
  chip_spi_exchange(NULL, in + have, POET_BLOCK - have);
  chip.block = in;
}

uint16_t chip_spi_crc(void) {
  return chip.block ? crc16(0, chip.block, POET_BLOCK) : chip.crc;
}

uint32_t chip_crc(uint32_t crc, const void *data, uint32_t size) {
  return poet_crc(crc, data, size);
}

/* -- the chip's own flash: this board has none -- */

uint32_t flash_blocks(void) {
  return 0;
}

int flash_read(uint32_t block, void *data, uint32_t count) {
  (void)block;
  (void)data;
  (void)count;
  return -1;
}

int flash_write(uint32_t block, const void *data, uint32_t count) {
  (void)block;
  (void)data;
  (void)count;
  return -1;
}

int flash_erase(uint32_t block, uint32_t count) {
  (void)block;
  (void)count;
  return -1;
}

uint32_t flash_erases(void) {
  return 0;
}

bool chip_supply_suffices(void) {
  return true;
}

void health_moved(void) {
}

uint32_t chip_cycles(void) {
  return 0;
}

uint32_t chip_lock(void) {
  return 0;
}

void chip_unlock(uint32_t was) {
  (void)was;
}

uint32_t chip_lock_lane(void) {
  return 0;
}

void chip_unlock_lane(uint32_t was) {
  (void)was;
}

void chip_let_interrupts_run(void) {
}

void chip_sleep(void) {
  if (bench.bytes == bench.cut_at)
    longjmp(chip.reset, 1);
  rule(bench_us() < LONGEST_US, "an access ends within a minute");
  if (chip.exchanged) {
    chip.exchanged = false;
    card_exchanged();
  } else {
    rule(chip.alarm_ns, "something will wake the processor");
    bench.now_ns = chip.alarm_ns;
    chip.alarm_ns = 0;
    card_alarm();
  }
}

/* -- bench.h -- */

bool bench_start(const char *image, const struct sdcard_config *config) {
  if (bench.card)
    sdcard_free(bench.card);
  bench.card = sdcard_new(image, config);
  if (bench.card)
    bench_reset();
  return bench.card;
}

void bench_reset(void) {
  memset(&chip, 0, sizeof chip);
  chip.byte_ns = SLOW_NS;
  bench.now_ns = bench.started_ns = bench.bytes = 0;
  bench.cut_at = UINT64_MAX;
  driver_reset();
  sdcard_new_host(bench.card);
}

static void begin(void) {
  bench.started_ns = bench.now_ns;
}

uint32_t bench_mount(void) {
  begin();
  return lane_storage_blocks(NULL);
}

uint32_t bench_allocation_mib(void) {
  return lane_allocation_mib(NULL);
}

int bench_write(uint32_t block, uint32_t count, const uint8_t *data,
                uint64_t cut) {
  begin();
  bench.cut_at = cut == UINT64_MAX ? cut : bench.bytes + cut;
  if (setjmp(chip.reset)) {
    bench_reset();
    return 1;
  }
  const int error = lane_write(NULL, block, data, count);
  bench.cut_at = UINT64_MAX;
  return error;
}

int bench_read(uint32_t block, uint32_t count, uint8_t *data) {
  begin();
  return lane_read(NULL, block, data, count);
}

int bench_transfer(uint32_t block, uint8_t *data, uint32_t size_bytes,
                   bool write) {
  struct poet_transfer transfer = {.data = data,
                                   .size_bytes = size_bytes,
                                   .block = block,
                                   .trailer = {0, block},
                                   .write = write};
  begin();
  lane_submit(NULL, &transfer);
  while (!poet_transfer_has_ended(&transfer))
    lane_rest(NULL);
  return transfer.status;
}

uint32_t bench_retries(void) {
  return card_retries();
}

struct sdcard *bench_card(void) {
  return bench.card;
}

uint64_t bench_us(void) {
  return (bench.now_ns - bench.started_ns) / 1000;
}
