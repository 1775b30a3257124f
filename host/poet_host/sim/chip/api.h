/* What Python calls. The host reads this file as it is (lines with a # left
   out), so it holds plain declarations only. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum run_result {
  RUN_SLICE,      /* the given time is over */
  RUN_IDLE,       /* asleep, and nothing but input from outside can wake it */
  RUN_BREAKPOINT, /* a BKPT instruction; r0, r1 as the program set them */
  RUN_RESET,      /* the program asked for a reset */
  RUN_POWER_CUT,  /* a power cut that was asked for */
  RUN_FAULT,      /* the program did what the chip does not allow or model */
};

struct machine_meter {
  uint64_t ticks;  /* of machine_tick_hz */
  uint64_t cycles; /* core cycles, awake */
  uint64_t instructions;
  uint64_t asleep_ticks;
  uint64_t exceptions;
  uint64_t card_active_ns;
};

struct machine;

/* A chip without peripherals other than the core's own (tests of the core). */
struct machine *bare_new(bool m4, uint32_t flash_bytes, uint32_t ram_bytes);
void machine_free(struct machine *m);

bool machine_load(struct machine *m, uint32_t address, const uint8_t *data,
                  uint32_t size_bytes);
bool machine_peek(struct machine *m, uint32_t address, uint8_t *data,
                  uint32_t size_bytes);
void machine_set_stack_limit(struct machine *m, uint32_t address);
/* Enter HardFault where the chip would, rather than stop with a message. */
void machine_take_faults(struct machine *m, bool take);
void machine_reset(struct machine *m);
enum run_result machine_run(struct machine *m, uint64_t ticks);
const char *machine_message(const struct machine *m);
void machine_meter(const struct machine *m, struct machine_meter *meter);
uint32_t machine_tick_hz(const struct machine *m);
/* Register 0..15; 16 is xPSR. */
uint32_t machine_register(struct machine *m, unsigned number);
/* After RUN_BREAKPOINT: go on behind the BKPT, with this in r0. */
void machine_continue(struct machine *m, uint32_t r0);
/* Drives a peripheral's request line, for tests. */
void machine_irq(struct machine *m, unsigned irq, bool level);

/* Size, cycles and flags of one instruction (decode.h): for the scan of a
   program for instructions its core lacks. */
struct decoded {
  unsigned size_bytes, cycles;
  bool illegal, floating_point;
};
struct decoded machine_decode(bool m4, uint16_t first, uint16_t second);
