/* machine.c - creates, loads, resets and reads a machine.

   machine_create makes the core, its memory and the system control space; the
   chip (samd21.c, nrf52840.c) then adds its peripherals. machine_reset resets
   the core and the system control space; memory and peripherals keep their
   state. machine_free frees everything except the SD card. */
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "scene.h"
#include "sdcard.h"
#include "usb_bus.h"

static void create_core(struct machine *m) {
  uc_open(UC_ARCH_ARM, UC_MODE_THUMB, &m->uc);
  uc_ctl_set_cpu_model(m->uc, m->core == CORE_M4F ? UC_CPU_ARM_CORTEX_M4
                                                  : UC_CPU_ARM_CORTEX_M0);
  uc_mem_map_ptr(m->uc, 0, m->flash_bytes, UC_PROT_READ | UC_PROT_EXEC,
                 m->flash);
  for (uint32_t at = 0; at < m->ram_bytes; at += RAM_PIECE_BYTES)
    uc_mem_map_ptr(m->uc, m->ram_base + at, RAM_PIECE_BYTES,
                   UC_PROT_READ | UC_PROT_WRITE, m->ram + at);
  uc_hook hook;
  uc_hook_add(m->uc, &hook, UC_HOOK_BLOCK, core_on_block, m, 1, 0);
  uc_hook_add(m->uc, &hook, UC_HOOK_INTR, core_on_interrupt, m, 1, 0);
  uc_hook_add(m->uc, &hook, UC_HOOK_MEM_INVALID, core_on_bad_access, m, 1, 0);
}

struct machine *machine_create(enum core core, uint32_t flash_bytes,
                               uint32_t ram_base, uint32_t ram_bytes,
                               uint32_t tick_hz) {
  struct machine *m = calloc(1, sizeof *m);
  m->core = core;
  m->flash_bytes = flash_bytes;
  m->ram_base = ram_base;
  m->ram_bytes = ram_bytes;
  m->tick_hz = tick_hz;
  m->ticks_per_cycle = 1;
  m->supply_mv = 3300;
  m->flash = mmap(NULL, flash_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(m->flash, 0xff, flash_bytes); /* erased */
  m->ram = calloc(1, ram_bytes);
  m->flash_blocks = calloc(flash_bytes / 2, sizeof *m->flash_blocks);
  create_core(m);
  machine_window(m, 0xe000e000, 0x1000);
  scs_create(m);
  return m;
}

struct machine *bare_new(bool m4, uint32_t flash_bytes, uint32_t ram_bytes) {
  return machine_create(m4 ? CORE_M4F : CORE_M0PLUS, flash_bytes, 0x20000000,
                        ram_bytes, m4 ? 64000000 : 48000000);
}

void machine_free(struct machine *m) {
  uc_close(m->uc);
  free(m->chip);
  usb_bus_free(m->usb);
  munmap(m->flash, m->flash_bytes);
  free(m->array.writes);
  free(m->ram);
  free(m->flash_blocks);
  free(m);
}

static uint8_t *memory_at(struct machine *m, uint32_t address,
                          uint32_t size_bytes) {
  if (address <= m->flash_bytes && size_bytes <= m->flash_bytes - address)
    return m->flash + address;
  if (address - m->ram_base <= m->ram_bytes &&
      size_bytes <= m->ram_bytes - (address - m->ram_base))
    return m->ram + (address - m->ram_base);
  return NULL;
}

bool machine_load(struct machine *m, uint32_t address, const uint8_t *data,
                  uint32_t size_bytes) {
  uint8_t *to = memory_at(m, address, size_bytes);
  if (!to)
    return false;
  memcpy(to, data, size_bytes);
  if (address < m->flash_bytes && address + size_bytes > m->array.program_end)
    m->array.program_end = address + size_bytes;
  return true;
}

bool machine_peek(struct machine *m, uint32_t address, uint8_t *data,
                  uint32_t size_bytes) {
  const uint8_t *from = memory_at(m, address, size_bytes);
  if (from)
    memcpy(data, from, size_bytes);
  return from != NULL;
}

uint32_t machine_flash_bytes(const struct machine *m) {
  return m->flash_bytes;
}

void machine_set_stack_limit(struct machine *m, uint32_t address) {
  m->stack_limit = address;
}

void machine_take_faults(struct machine *m, bool take) {
  m->take_faults = take;
}

void machine_set_start(struct machine *m, uint32_t address) {
  m->start = address;
}

void machine_reset(struct machine *m) {
  uint32_t vectors[2];
  memcpy(vectors, m->flash + m->start, sizeof vectors);
  scs_reset(m);
  m->scs.vtor = m->start;
  m->asleep = m->conditional = m->stopped = m->locked_up = false;
  m->aligned_after = 0;
  m->stack_lowest = vectors[0];
  core_write(m, UC_ARM_REG_SP, vectors[0]);
  core_write(m, UC_ARM_REG_LR, 0xffffffff);
  core_write(m, UC_ARM_REG_PC, vectors[1] | 1u);
}

const char *machine_message(const struct machine *m) {
  return m->message;
}

void machine_meter(const struct machine *m, struct machine_meter *meter) {
  *meter = m->meter;
  meter->ticks = m->now;
  meter->flash_erases = m->array.erased;
  meter->flash_writes = m->array.programmed;
  meter->flash_busy_ticks = m->array.busy_ticks;
  meter->stack_free_bytes = m->stack_lowest - m->stack_limit;
  if (m->card) {
    struct sdcard_counts counts;
    sdcard_counts(m->card, machine_nanoseconds(m), &counts);
    meter->card_reading_ns = counts.reading_ns;
    meter->card_writing_ns = counts.writing_ns;
    meter->card_reads = counts.reads;
    meter->card_writes = counts.writes;
  }
  if (m->scene)
    meter->sensor_nj =
        lsm6ds3_charge(&m->scene->sensor) / 1000000 * m->supply_mv / 1000;
}

uint32_t machine_tick_hz(const struct machine *m) {
  return m->tick_hz;
}

uint64_t ticks_to_ns(const struct machine *m, uint64_t ticks) {
  return ticks / m->tick_hz * 1000000000u +
         ticks % m->tick_hz * 1000000000u / m->tick_hz;
}

uint64_t machine_nanoseconds(const struct machine *m) {
  return ticks_to_ns(m, m->now);
}

void cache_configure(struct machine *m, unsigned line_shift, unsigned lines,
                     unsigned miss_cycles) {
  memset(&m->cache, 0, sizeof m->cache);
  m->cache.line_shift = (uint8_t)line_shift;
  m->cache.lines = (uint16_t)lines;
  m->cache.mask = (uint16_t)(lines ? lines - 1 : 0);
  m->cache.miss_cycles = (uint8_t)miss_cycles;
}

uint8_t machine_card_exchange(struct machine *m, uint8_t out, uint64_t at,
                              uint64_t byte_ticks) {
  if (!m->card)
    return 0xff;
  const uint8_t in =
      sdcard_exchange(m->card, out, ticks_to_ns(m, at),
                      byte_ticks * 1000 / (m->tick_hz / 1000000));
  if (sdcard_complaint(m->card))
    machine_stop(m, RUN_FAULT, "SD card: %s", sdcard_complaint(m->card));
  if (sdcard_power_lost(m->card))
    machine_stop(m, RUN_POWER_CUT, "the power was cut, as asked");
  return in;
}

void machine_card_select(struct machine *m, bool low) {
  if (m->card && low != m->card->selected)
    sdcard_select(m->card, low, machine_nanoseconds(m));
}

uint32_t machine_register(struct machine *m, unsigned number) {
  if (number == 16)
    return core_read(m, UC_ARM_REG_XPSR);
  return core_read(m, number < 13    ? UC_ARM_REG_R0 + (int)number
                      : number == 13 ? UC_ARM_REG_SP
                      : number == 14 ? UC_ARM_REG_LR
                                     : UC_ARM_REG_PC);
}

void machine_continue(struct machine *m, uint32_t r0) {
  m->stopped = false;
  core_write(m, UC_ARM_REG_R0, r0);
  core_write(m, UC_ARM_REG_PC, (core_read(m, UC_ARM_REG_PC) + 2) | 1u);
}

struct decoded machine_decode(bool m4, uint16_t first, uint16_t second) {
  struct instruction i =
      decode_instruction(m4 ? CORE_M4F : CORE_M0PLUS, first, second);
  return (struct decoded){i.size_bytes, i.cycles,
                          (i.flags & INSTRUCTION_ILLEGAL) != 0,
                          (i.flags & INSTRUCTION_FP) != 0};
}
