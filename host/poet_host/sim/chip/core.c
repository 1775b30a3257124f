/* core.c - the loop around Unicorn, and the hook in which time passes.

   Unicorn calls core_on_block before each basic block. The hook checks what the
   block may do, and adds its cycles to `now`. So the whole block's time passes
   before its instructions run. The hook stops the core when an event, an
   interrupt or the end of the slice is due; machine_run handles the reason and
   starts the core again.

   State, valid inside machine_run: `until` and `deadline` (ticks), `attend` and
   `refusal` (why the hook stopped the core), `interrupt` and `bad_address` (why
   the core stopped by itself). The last four are cleared before each start.

   Core registers may be changed only between two runs of the core. */
#include "machine.h"

#include <string.h>

#define NO_ADDRESS 0xdfffffffu /* odd, and without memory */

enum { IDLE_S = 4 }; /* a core that sleeps for longer is idle */

uint32_t core_read(struct machine *m, int reg) {
  uint32_t value = 0;
  uc_reg_read(m->uc, reg, &value);
  return value;
}

void core_write(struct machine *m, int reg, uint32_t value) {
  uc_reg_write(m->uc, reg, &value);
}

/* -- the hook before each block of code, which advances the clock -- */

/* Run due events. Return true if the core must stop before this block of code:
   for an interrupt, at the end of the slice, or to watch RAM (bus.c). */
static bool attend(struct machine *m) {
  uint64_t next = run_events(m);
  if (m->stopped || m->now >= m->until || exception_ready(m) ||
      watch_pending(m))
    return true;
  m->deadline = next < m->until ? next : m->until;
  if (m->scs.best) /* masked now: check at every block */
    m->deadline = 0;
  return false;
}

/* Return the wait states for the flash lines that the block needs. */
static uint32_t fetch_cycles(struct machine *m, uint32_t address,
                             uint32_t size_bytes) {
  struct flash_cache *cache = &m->cache;
  uint32_t line = address >> cache->line_shift;
  uint32_t last = (address + size_bytes - 1) >> cache->line_shift;
  uint32_t cycles = 0;
  for (; line <= last; line++) {
    uint32_t *tag = &cache->tags[line & cache->mask];
    if (cache->lines && *tag == line + 1)
      continue;
    *tag = line + 1;
    cycles += cache->miss_cycles;
  }
  return cycles;
}

void core_pass(struct machine *m, uint32_t cycles) {
  m->meter.cycles += cycles;
  m->now += (uint64_t)cycles * m->ticks_per_cycle;
}

/* Code in RAM may change at any time, so compare it with the code that was
   decoded. This takes far less time than to decode it. */
static const struct block *ram_block_at(struct machine *m, uint32_t address,
                                        uint32_t size_bytes) {
  const uint8_t *code = m->ram + (address - m->ram_base);
  struct ram_block *kept = &m->ram_blocks[address / 2 % RAM_BLOCKS];
  if (kept->address == address && kept->block.size_bytes == size_bytes &&
      size_bytes <= RAM_BLOCK_BYTES && !memcmp(kept->code, code, size_bytes))
    return &kept->block;
  kept->address = address;
  kept->block = decode_block(m->core, code, size_bytes);
  if (size_bytes <= RAM_BLOCK_BYTES)
    memcpy(kept->code, code, size_bytes);
  return &kept->block;
}

static const struct block *block_at(struct machine *m, uint32_t address,
                                    uint32_t size_bytes) {
  if (address - m->ram_base < m->ram_bytes)
    return m->ram_block = ram_block_at(m, address, size_bytes);
  struct block *block = &m->flash_blocks[address / 2];
  if (block->size_bytes != size_bytes)
    *block = decode_block(m->core, m->flash + address, size_bytes);
  return block;
}

/* True: the block must not run. */
static bool refuse(struct machine *m, const struct block *block) {
  if (block->flags & INSTRUCTION_ILLEGAL) {
    m->refusal = REFUSE_ILLEGAL;
    return true;
  }
  if (block->flags & INSTRUCTION_FP) {
    if ((m->scs.cpacr >> 20 & 15u) != 15u) {
      m->refusal = REFUSE_FPU;
      return true;
    }
    m->fp_used_in_handler = true;
  }
  if (block->aligned && !align_holds(m, block->aligned)) {
    m->refusal = REFUSE_UNALIGNED;
    return true;
  }
  if (block->flags & INSTRUCTION_SEV)
    m->scs.event_register = true;
  if (block->flags & INSTRUCTION_BARRIER)
    m->scs.stores_ordered = true;
  if (block->stack_bytes && m->stack_limit) {
    uint32_t sp = core_read(m, UC_ARM_REG_SP);
    if (sp < m->stack_limit + block->stack_bytes && !m->take_faults) {
      machine_stop(m, RUN_FAULT,
                   "the stack overflows: 0x%08x less %u bytes is below its "
                   "limit 0x%08x",
                   sp, block->stack_bytes, m->stack_limit);
      return true;
    }
    if (sp - block->stack_bytes < m->stack_lowest)
      m->stack_lowest = sp - block->stack_bytes;
  }
  return false;
}

void core_on_block(uc_engine *uc, uint64_t address64, uint32_t size_bytes,
                   void *user) {
  struct machine *m = user;
  uint32_t address = (uint32_t)address64;
  if (m->conditional) { /* `address` shows whether the branch was taken */
    m->conditional = false;
    if (address != m->fall_through)
      core_pass(m, m->taken_cycles);
  }
  if (m->aligned_after) {
    uint16_t needed = m->aligned_after;
    m->aligned_after = 0;
    if (!align_holds(m, needed)) {
      m->refusal = REFUSE_UNALIGNED;
      m->attend = true;
      uc_emu_stop(uc);
      return;
    }
  }
  m->block_address = address;
  if (m->array.correction.size_bytes)
    flash_correct(m);
  if (address < m->flash_bytes && m->now < m->array.busy_until)
    m->now = m->array.busy_until; /* the fetch stalls */
  if (m->now >= m->deadline && attend(m)) {
    m->attend = true;
    uc_emu_stop(uc);
    return;
  }
  if (address - m->ram_base >= m->ram_bytes && address >= m->flash_bytes)
    return; /* the core faults by itself */
  const struct block *block = block_at(m, address, size_bytes);
  m->aligned_after = block->aligned_after;
  if (block->flags | block->stack_bytes | block->aligned) {
    if (refuse(m, block)) {
      m->attend = true;
      uc_emu_stop(uc);
      return;
    }
    m->conditional = (block->flags & INSTRUCTION_CONDITIONAL) != 0;
    m->taken_cycles = block->taken_cycles;
    m->fall_through = address + size_bytes;
  }
  m->meter.instructions += block->instructions;
  uint32_t cycles = block->cycles;
  if (address < m->flash_bytes && m->cache.miss_cycles)
    cycles += fetch_cycles(m, address, size_bytes);
  m->began = m->now;
  core_pass(m, cycles);
}

void core_on_interrupt(uc_engine *uc, uint32_t number, void *user) {
  struct machine *m = user;
  m->interrupt = (int)number;
  uc_emu_stop(uc);
}

bool core_on_bad_access(uc_engine *uc, uc_mem_type type, uint64_t address,
                        int size, int64_t value, void *user) {
  (void)uc;
  struct machine *m = user;
  if (type == UC_MEM_WRITE_PROT && address < m->flash_bytes &&
      flash_store(m, (uint32_t)address, (unsigned)size, (uint32_t)value))
    return true;
  if (type == UC_MEM_WRITE_PROT && size == 4 && m->store_factory &&
      m->store_factory(m->chip, (uint32_t)address))
    return true;
  m->bad_access = type;
  m->bad_address = address;
  m->bad_size = (unsigned)size;
  return false;
}

/* -- the loop -- */

enum { INTNO_PREFETCH = 3, INTNO_DATA = 4, INTNO_SVC = 2, INTNO_BKPT = 7 };

static uint16_t code_at(struct machine *m, uint32_t address) {
  uint16_t half = 0;
  uc_mem_read(m->uc, address, &half, sizeof half);
  return half;
}

static void bad_access(struct machine *m, uint32_t pc) {
  uint32_t address = (uint32_t)m->bad_address;
  switch (m->bad_access) {
  case UC_MEM_WRITE_PROT:
    if (address < m->flash_bytes) {
      exception_fault(m, CFSR_PRECISERR | CFSR_BFARVALID,
                      "write to flash at 0x%08x, from 0x%08x", address, pc);
      return;
    }
    break;
  case UC_MEM_READ_UNMAPPED:
  case UC_MEM_WRITE_UNMAPPED:
    m->scs.bfar = address;
    if (!m->take_faults) {
      uncovered(m, m->bad_access == UC_MEM_READ_UNMAPPED ? "read" : "write",
                address, m->bad_size);
      return;
    }
    exception_fault(m, CFSR_PRECISERR | CFSR_BFARVALID, "access to 0x%08x",
                    address);
    return;
  case UC_MEM_FETCH_PROT:
    if (address - m->ram_base < m->ram_bytes) {
      allow_code(m, address);
      return;
    }
    break;
  default:
    break;
  }
  exception_fault(m, CFSR_IBUSERR, "jump to 0x%08x, where no code is", address);
}

static void sleep_now(struct machine *m, bool for_event) {
  if (for_event && m->scs.event_register) {
    m->scs.event_register = false;
    return;
  }
  m->asleep = true;
  m->sleeping_for_event = for_event;
}

/* The core has stopped without a request of a hook: find out why. */
static void settle(struct machine *m, uc_err error) {
  uint32_t pc = core_read(m, UC_ARM_REG_PC);
  if (pc >= 0xffffffe0u) {
    exception_return(m, pc | 1u);
    return;
  }
  uint16_t before = pc >= 2 ? code_at(m, pc - 2) : 0;
  if (m->interrupt == INTNO_SVC) {
    m->scs.pending[11] = true;
    exceptions_refresh(m);
  } else if (m->interrupt == INTNO_BKPT) {
    machine_stop(m, RUN_BREAKPOINT, "breakpoint");
  } else if (m->interrupt == INTNO_DATA) {
    exception_fault(m, CFSR_UNALIGNED, "unaligned access, from 0x%08x", pc);
  } else if (m->interrupt >= 0) {
    exception_fault(m, CFSR_IBUSERR, "the core raised exception %d at 0x%08x",
                    m->interrupt, pc);
  } else if (error == UC_ERR_OK && before == 0xbf30) {
    sleep_now(m, false);
  } else if (error == UC_ERR_INSN_INVALID && before == 0xbf20) {
    sleep_now(m, true);
  } else if (error == UC_ERR_INSN_INVALID && before == 0xbf10) {
    return; /* YIELD */
  } else if (error == UC_ERR_INSN_INVALID) {
    exception_fault(m, CFSR_UNDEFINSTR, "illegal instruction 0x%04x at 0x%08x",
                    code_at(m, pc), pc);
  } else if (m->bad_address != NEVER) {
    bad_access(m, pc);
  } else if (error == UC_ERR_READ_UNALIGNED ||
             error == UC_ERR_WRITE_UNALIGNED) {
    exception_fault(m, CFSR_UNALIGNED, "unaligned access, from 0x%08x", pc);
  } else if (error != UC_ERR_OK) {
    machine_stop(m, RUN_FAULT, "the core stopped: %s", uc_strerror(error));
  }
}

static void refused(struct machine *m) {
  if (m->refusal == REFUSE_ILLEGAL)
    exception_fault(m, CFSR_UNDEFINSTR,
                    "an instruction that this core does not have, in the "
                    "block at 0x%08x",
                    m->block_address);
  else if (m->refusal == REFUSE_UNALIGNED)
    exception_fault(m, CFSR_UNALIGNED,
                    "unaligned access by an instruction that needs a multiple "
                    "of 4, in the block at 0x%08x",
                    m->block_address);
  else
    exception_fault(m, CFSR_NOCP,
                    "a floating-point instruction before CPACR enables the "
                    "FPU, in the block at 0x%08x",
                    m->block_address);
}

/* Advance the clock to the next event, without executing instructions. */
static void pass_to(struct machine *m, uint64_t next) {
  uint64_t to = next < m->until ? next : m->until;
  if (to > m->now) {
    m->meter.asleep_ticks += to - m->now;
    m->now = to;
  }
  run_events(m);
}

/* A watchdog that nobody feeds is not idle: it resets the chip. */
static bool is_idle(const struct machine *m, const struct event *next) {
  return next->at == NEVER ||
         (!next->watchdog && !m->wait_idle &&
          next->at > m->now + (uint64_t)IDLE_S * m->tick_hz);
}

static void sleep_on(struct machine *m) {
  if (exception_wakes(m) || (m->sleeping_for_event && m->scs.event_register)) {
    if (m->sleeping_for_event)
      m->scs.event_register = false;
    m->asleep = false;
    return;
  }
  const struct event *next = next_event(m);
  if (is_idle(m, next))
    m->result = RUN_IDLE;
  else
    pass_to(m, next->at);
}

enum run_result machine_run(struct machine *m, uint64_t ticks) {
  m->until = m->now + ticks;
  if (!m->stopped) /* a change from outside may have stopped it */
    m->result = RUN_SLICE;
  while (!m->stopped && m->result == RUN_SLICE && m->now < m->until) {
    if (m->locked_up || m->asleep) {
      if (m->locked_up)
        pass_to(m, next_event(m)->at);
      else
        sleep_on(m);
      continue;
    }
    int exception = exception_ready(m);
    if (exception)
      exception_enter(m, exception);
    if (watch_pending(m))
      watch_guarded(m);
    m->deadline = 0;
    m->attend = false;
    m->refusal = REFUSE_NOTHING;
    m->interrupt = -1;
    m->bad_address = NEVER;
    m->in_core = true;
    uc_err error =
        uc_emu_start(m->uc, core_read(m, UC_ARM_REG_PC) | 1u, NO_ADDRESS, 0, 0);
    m->in_core = false;
    flash_correct(m);
    if (m->refusal)
      refused(m);
    else if (!m->attend && !m->stopped)
      settle(m, error);
  }
  return m->result;
}
