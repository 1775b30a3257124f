/* exception.c - exceptions: priorities, entry and return (ARMv7-M B1.5, ARMv6-M
   B1.5). The process stack is not modelled: selecting it stops the machine.

   State: struct system_control (scs.c). `best` and `running` follow from the
   arrays; exceptions_refresh computes them after every change of an array.
   PRIMASK, BASEPRI and FAULTMASK are registers of the core, so exception_ready
   reads them each time. Entry and return change core registers, so they happen
   only between two runs of the core. */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
  HARD_FAULT = 3,
  THREAD_PRIORITY = 256,
  BASIC_FRAME_BYTES = 0x20,
  FP_FRAME_BYTES = 0x68,
  XPSR_THUMB = 1 << 24,
  XPSR_ALIGNED = 1 << 9,
  CONTROL_SPSEL = 2,
  CONTROL_FPCA = 4,
  SCR_SLEEPONEXIT = 2,
  SCR_SEVONPEND = 16,
};

static int priority_of(const struct machine *m, int number) {
  switch (number) {
  case 2:
    return -2;
  case HARD_FAULT:
    return -1;
  default:
    return m->scs.priority[number];
  }
}

static bool always_enabled(int number) {
  return number < 16;
}

void exceptions_refresh(struct machine *m) {
  struct system_control *scs = &m->scs;
  int best = 0, best_priority = THREAD_PRIORITY, running = THREAD_PRIORITY;
  for (int n = 2; n < EXCEPTIONS; n++) {
    int priority = priority_of(m, n);
    if (scs->active[n] && priority < running)
      running = priority;
    if (scs->pending[n] && (always_enabled(n) || scs->enabled[n]) &&
        priority < best_priority) {
      best = n;
      best_priority = priority;
    }
  }
  scs->running = running;
  scs->best = best && best_priority < running ? best : 0;
  if (scs->best)
    m->deadline = 0;
}

/* Return the priority that PRIMASK, FAULTMASK and BASEPRI give to the running
   code. */
static int masked_priority(struct machine *m) {
  int priority = THREAD_PRIORITY;
  if (core_read(m, UC_ARM_REG_PRIMASK) & 1)
    priority = 0;
  if (m->core == CORE_M4F) {
    int base = (int)(core_read(m, UC_ARM_REG_BASEPRI) & 0xffu);
    if (base && base < priority)
      priority = base;
    if (core_read(m, UC_ARM_REG_FAULTMASK) & 1)
      priority = -1;
  }
  return priority;
}

int exception_ready(struct machine *m) {
  int best = m->scs.best;
  return best && priority_of(m, best) < masked_priority(m) ? best : 0;
}

void machine_check_stores(struct machine *m, const char *what) {
  if (!m->scs.stores_ordered)
    machine_stop(m, RUN_FAULT,
                 "%s is started without a barrier (DMB or DSB): stores to RAM "
                 "may come after it",
                 what);
}

bool exception_wakes(const struct machine *m) {
  return m->scs.best != 0; /* PRIMASK does not prevent a wake-up */
}

void machine_irq(struct machine *m, unsigned irq, bool level) {
  struct system_control *scs = &m->scs;
  unsigned n = 16 + irq;
  if (level && !scs->line[n]) {
    scs->pending[n] = true;
    if (m->scs.scr & SCR_SEVONPEND)
      scs->event_register = true;
    scs->line[n] = true;
    exceptions_refresh(m);
  }
  scs->line[n] = level;
}

static void store_fp(struct machine *m, uint32_t *frame) {
  for (int s = 0; s < 16; s++)
    frame[8 + s] = core_read(m, UC_ARM_REG_S0 + s);
  frame[24] = core_read(m, UC_ARM_REG_FPSCR);
  frame[25] = 0;
}

static void load_fp(struct machine *m, const uint32_t *frame) {
  for (int s = 0; s < 16; s++)
    core_write(m, UC_ARM_REG_S0 + s, frame[8 + s]);
  core_write(m, UC_ARM_REG_FPSCR, frame[24]);
}

static const int stacked_registers[6] = {UC_ARM_REG_R0,  UC_ARM_REG_R1,
                                         UC_ARM_REG_R2,  UC_ARM_REG_R3,
                                         UC_ARM_REG_R12, UC_ARM_REG_LR};

static uint32_t vector_of(struct machine *m, int number) {
  uint32_t vector = 0;
  uc_mem_read(m->uc, m->scs.vtor + 4 * (uint32_t)number, &vector,
              sizeof vector);
  return vector;
}

void exception_enter(struct machine *m, int number) {
  uint32_t sp = core_read(m, UC_ARM_REG_SP);
  uint32_t xpsr = core_read(m, UC_ARM_REG_XPSR);
  uint32_t control = core_read(m, UC_ARM_REG_CONTROL);
  uint32_t vector = vector_of(m, number);
  bool fp = m->core == CORE_M4F && (control & CONTROL_FPCA);
  uint32_t bytes = fp ? FP_FRAME_BYTES : BASIC_FRAME_BYTES;
  uint32_t to = (sp - bytes) & ~7u;
  if (control & CONTROL_SPSEL) {
    machine_stop(m, RUN_FAULT, "the process stack is not modelled");
    return;
  }
  if (!(vector & 1)) {
    machine_stop(m, RUN_FAULT, "exception %d: its vector 0x%08x is not code",
                 number, vector);
    return;
  }
  if (m->take_faults && to - m->ram_base >= m->ram_bytes) {
    core_lock_up(m);
    return;
  }
  if (m->stack_limit && to < m->stack_limit && !m->take_faults) {
    machine_stop(m, RUN_FAULT,
                 "the stack overflows: the frame of exception %d at 0x%08x is "
                 "below its limit 0x%08x",
                 number, to, m->stack_limit);
    return;
  }
  if (to < m->stack_lowest)
    m->stack_lowest = to;
  uint32_t *frame = (uint32_t *)(void *)machine_dma(m, "the stack", to, bytes);
  if (!frame)
    return;
  for (int i = 0; i < 6; i++)
    frame[i] = core_read(m, stacked_registers[i]);
  frame[6] = core_read(m, UC_ARM_REG_PC) & ~1u;
  frame[7] = xpsr | (sp & 4 ? XPSR_ALIGNED : 0);
  if (fp)
    store_fp(m, frame);
  bool handler = (xpsr & 0x1ff) != 0;
  core_write(m, UC_ARM_REG_SP, to);
  core_write(m, UC_ARM_REG_LR,
             (handler ? 0xfffffff1u : 0xfffffff9u) & (fp ? ~0x10u : ~0u));
  core_write(m, UC_ARM_REG_XPSR, XPSR_THUMB | (uint32_t)number);
  if (fp)
    core_write(m, UC_ARM_REG_CONTROL, control & ~(uint32_t)CONTROL_FPCA);
  core_write(m, UC_ARM_REG_PC, vector);
  m->scs.pending[number] = false;
  m->scs.active[number] = true;
  m->scs.interrupted_ordered[number] = m->scs.stores_ordered;
  m->scs.stores_ordered = false;
  m->scs.event_register = true;
  m->fp_used_in_handler = false;
  m->conditional = false;
  m->aligned_after = 0;
  m->meter.exceptions++;
  exceptions_refresh(m);
  core_pass(m, m->core == CORE_M4F ? 12 : 15);
}

void exception_return(struct machine *m, uint32_t exc_return) {
  uint32_t xpsr = core_read(m, UC_ARM_REG_XPSR);
  int number = (int)(xpsr & 0x1ff);
  bool fp = m->core == CORE_M4F && !(exc_return & 0x10);
  if (number < 2 || number >= EXCEPTIONS || !m->scs.active[number]) {
    machine_stop(m, RUN_FAULT, "return from exception %d, which is not active",
                 number);
    return;
  }
  if ((exc_return & 0xf) == 0xd) {
    machine_stop(m, RUN_FAULT, "the process stack is not modelled");
    return;
  }
  uint32_t sp = core_read(m, UC_ARM_REG_SP);
  uint32_t bytes = fp ? FP_FRAME_BYTES : BASIC_FRAME_BYTES;
  uint32_t *frame = (uint32_t *)(void *)machine_dma(m, "the stack", sp, bytes);
  if (!frame)
    return;
  if (fp) {
    load_fp(m, frame);
    if (m->fp_used_in_handler) /* lazy stacking was needed */
      core_pass(m, 17);
  }
  m->scs.active[number] = false;
  m->scs.stores_ordered = m->scs.interrupted_ordered[number];
  if (m->scs.line[number])
    m->scs.pending[number] = true; /* still requested */
  for (int i = 0; i < 6; i++)
    core_write(m, stacked_registers[i], frame[i]);
  core_write(m, UC_ARM_REG_SP,
             (sp + bytes) | (frame[7] & XPSR_ALIGNED ? 4u : 0u));
  core_write(m, UC_ARM_REG_XPSR, frame[7] & ~(uint32_t)XPSR_ALIGNED);
  if (m->core == CORE_M4F) {
    uint32_t control = core_read(m, UC_ARM_REG_CONTROL);
    core_write(m, UC_ARM_REG_CONTROL,
               fp ? control | CONTROL_FPCA : control & ~(uint32_t)CONTROL_FPCA);
    core_write(m, UC_ARM_REG_FAULTMASK, 0);
  }
  core_write(m, UC_ARM_REG_PC, frame[6] | 1u);
  m->fp_used_in_handler = true;
  m->conditional = false;
  m->aligned_after = 0;
  m->scs.event_register = true;
  exceptions_refresh(m);
  core_pass(m, m->core == CORE_M4F ? 10 : 13);
  if (m->scs.running == THREAD_PRIORITY && (m->scs.scr & SCR_SLEEPONEXIT)) {
    m->asleep = true;
    m->sleeping_for_event = false;
  }
}

void exception_fault(struct machine *m, uint32_t cfsr, const char *format,
                     ...) {
  char text[MESSAGE_BYTES / 2];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (m->take_faults && m->scs.running <= -1) {
    core_lock_up(m);
    return;
  }
  if (!m->take_faults) {
    machine_stop(m, RUN_FAULT, "%s", text);
    return;
  }
  m->scs.cfsr |= cfsr;
  m->scs.hfsr |= 1u << 30;
  exception_enter(m, HARD_FAULT);
}
