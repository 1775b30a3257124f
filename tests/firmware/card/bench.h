/* The SD driver of the bare-metal boards on this computer, with the card of the
   simulated boards. A broken rule ends the process. */
#pragma once

#include "api.h"

/* Changes bytes on the wire: those of the host before the card receives them,
   and those of the card before the host does. */
typedef void bench_disturb(uint8_t *bytes, uint32_t size_bytes);

extern struct bench {
  struct sdcard *card;
  uint64_t now_ns, started_ns;
  uint64_t bytes, cut_at; /* exchanged, and when the processor is reset */
  bench_disturb *from_host, *from_card; /* NULL: the wire is good */
} bench;

void rule(bool kept, const char *what);
/* Power on a card with this image, and reset the driver. */
bool bench_start(const char *image, const struct sdcard_config *config);
/* Reset the processor. The card keeps its power. */
void bench_reset(void);
/* Blocks of the card; 0: none answers. */
uint32_t bench_mount(void);
/* Allocation unit of the mounted card in MiB; 0: unknown. */
uint32_t bench_allocation_mib(void);
/* Synchronous access: 0, or -1 after an error. 1: the processor was reset after
   `cut` bytes on the wire. */
int bench_write(uint32_t block, uint32_t count, const uint8_t *data,
                uint64_t cut);
int bench_read(uint32_t block, uint32_t count, uint8_t *data);
/* The same by the transfer lane, for a tensor of `size_bytes`. */
int bench_transfer(uint32_t block, uint8_t *data, uint32_t size_bytes,
                   bool write);
uint32_t bench_retries(void);
struct sdcard *bench_card(void);
/* Simulated time of the latest access. */
uint64_t bench_us(void);
