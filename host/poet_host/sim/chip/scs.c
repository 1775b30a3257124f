/* scs.c - the System Control Space: registers of SysTick, NVIC and SCB (ARMv6-M
   B3.2 to B3.4, ARMv7-M B3.2 to B3.4).

   State: struct system_control of the machine. `line` is the level of each
   request. `pending` is set when this level rises, and again at the return from
   the exception if the level is still high. SysTick has no counter: the tick at
   which it next reaches zero is an event, and its value follows from that tick.
   A register that the core lacks stops the machine. */
#include "machine.h"

#include <string.h>

enum {
  BASE = 0xe000e000,
  SIZE_BYTES = 0x1000,
  SYST_CSR = 0x010,
  SYST_RVR = 0x014,
  SYST_CVR = 0x018,
  NVIC_ISER = 0x100,
  NVIC_ICER = 0x180,
  NVIC_ISPR = 0x200,
  NVIC_ICPR = 0x280,
  NVIC_IABR = 0x300,
  NVIC_IPR = 0x400,
  SCB_CPUID = 0xd00,
  SCB_ICSR = 0xd04,
  SCB_VTOR = 0xd08,
  SCB_AIRCR = 0xd0c,
  SCB_SCR = 0xd10,
  SCB_CCR = 0xd14,
  SCB_SHPR1 = 0xd18,
  SCB_SHPR3 = 0xd20,
  SCB_CFSR = 0xd28,
  SCB_HFSR = 0xd2c,
  SCB_BFAR = 0xd38,
  SCB_CPACR = 0xd88,
  CSR_ENABLE = 1,
  CSR_TICKINT = 2,
  CSR_CLKSOURCE = 4,
  CSR_COUNTFLAG = 1 << 16,
  SYSTICK_EXCEPTION = 15,
  PENDSV_EXCEPTION = 14,
};

/* -- SysTick -- */

static uint64_t systick_period(const struct machine *m) {
  return ((uint64_t)m->scs.systick_rvr + 1) * m->ticks_per_cycle;
}

/* Only a counter with an interrupt needs an event: others are brought up to
 * date when they are read, so that a sleeping core without events is idle. */
static void systick_settle(struct machine *m) {
  if (m->scs.systick_zero_at > m->now)
    return;
  const uint64_t period = systick_period(m);
  m->scs.systick_csr |= CSR_COUNTFLAG;
  m->scs.systick_zero_at +=
      ((m->now - m->scs.systick_zero_at) / period + 1) * period;
  if (!m->scs.systick_rvr)
    m->scs.systick_zero_at = NEVER;
}

static void systick_schedule(struct machine *m) {
  event_cancel(&m->scs.systick);
  if ((m->scs.systick_csr & CSR_TICKINT) && m->scs.systick_zero_at != NEVER)
    event_at(m, &m->scs.systick, m->scs.systick_zero_at);
}

static void systick_zero(void *owner, uint64_t at) {
  struct machine *m = owner;
  (void)at;
  systick_settle(m);
  m->scs.pending[SYSTICK_EXCEPTION] = true;
  exceptions_refresh(m);
  systick_schedule(m);
}

static void systick_restart(struct machine *m) {
  const bool runs = (m->scs.systick_csr & CSR_ENABLE) && m->scs.systick_rvr;
  m->scs.systick_zero_at = runs ? m->now + systick_period(m) : NEVER;
  systick_schedule(m);
}

static uint32_t systick_value(void *owner) {
  struct machine *m = owner;
  systick_settle(m);
  if (m->scs.systick_zero_at == NEVER)
    return 0;
  uint64_t left = m->scs.systick_zero_at - m->now;
  uint64_t value = (left + m->ticks_per_cycle - 1) / m->ticks_per_cycle;
  return value > m->scs.systick_rvr ? 0 : (uint32_t)value;
}

/* A read clears COUNTFLAG. */
static uint32_t read_systick(void *owner) {
  struct machine *m = owner;
  systick_settle(m);
  const uint32_t value = m->scs.systick_csr;
  m->scs.systick_csr &= ~(uint32_t)CSR_COUNTFLAG;
  return value;
}

static bool write_systick(void *owner, uint32_t value) {
  struct machine *m = owner;
  systick_settle(m);
  const uint32_t before = m->scs.systick_csr;
  if ((value & CSR_ENABLE) && !(value & CSR_CLKSOURCE))
    return false; /* no reference clock on these chips */
  m->scs.systick_csr = (value & 7u) | (before & CSR_COUNTFLAG);
  if ((value ^ before) & CSR_ENABLE)
    systick_restart(m);
  else
    systick_schedule(m);
  return true;
}

static bool clear_systick(void *owner, uint32_t value) {
  struct machine *m = owner;
  (void)value;
  m->scs.systick_csr &= ~(uint32_t)CSR_COUNTFLAG;
  systick_restart(m);
  return true;
}

/* -- NVIC -- */

static uint32_t bits_of(const bool *flags, uint32_t word) {
  uint32_t value = 0;
  for (unsigned i = 0; i < 32; i++)
    if (16 + 32 * word + i < EXCEPTIONS && flags[16 + 32 * word + i])
      value |= 1u << i;
  return value;
}

static void set_bits(bool *flags, uint32_t word, uint32_t value, bool to) {
  for (unsigned i = 0; i < 32; i++)
    if ((value >> i & 1) && 16 + 32 * word + i < EXCEPTIONS)
      flags[16 + 32 * word + i] = to;
}

static bool nvic_write(struct machine *m, uint32_t offset, uint32_t value) {
  struct system_control *scs = &m->scs;
  uint32_t word = (offset & 0x7f) / 4;
  switch (offset & ~0x7fu) {
  case NVIC_ISER:
    set_bits(scs->enabled, word, value, true);
    break;
  case NVIC_ICER:
    set_bits(scs->enabled, word, value, false);
    break;
  case NVIC_ISPR:
    set_bits(scs->pending, word, value, true);
    break;
  case NVIC_ICPR:
    set_bits(scs->pending, word, value, false);
    for (unsigned n = 16; n < EXCEPTIONS; n++)
      if (scs->line[n] && !scs->active[n])
        scs->pending[n] = true; /* its request is still active */
    break;
  default:
    return false;
  }
  exceptions_refresh(m);
  return true;
}

static bool nvic_read(struct machine *m, uint32_t offset, uint32_t *value) {
  uint32_t word = (offset & 0x7f) / 4;
  switch (offset & ~0x7fu) {
  case NVIC_ISER:
  case NVIC_ICER:
    *value = bits_of(m->scs.enabled, word);
    return true;
  case NVIC_ISPR:
  case NVIC_ICPR:
    *value = bits_of(m->scs.pending, word);
    return true;
  case NVIC_IABR:
    *value = bits_of(m->scs.active, word);
    return m->core == CORE_M4F;
  default:
    return false;
  }
}

/* IPR and SHPR: the M4 can access single bytes, the M0+ only whole words. */
static uint8_t *priorities(struct machine *m, uint32_t offset, unsigned size) {
  uint32_t first;
  if (m->core == CORE_M0PLUS && size != 4)
    return NULL;
  if (offset >= NVIC_IPR && offset < NVIC_IPR + EXCEPTIONS - 16)
    first = 16 + offset - NVIC_IPR;
  else if (offset >= SCB_SHPR1 && offset < SCB_SHPR3 + 4)
    first = 4 + offset - SCB_SHPR1;
  else
    return NULL;
  return &m->scs.priority[first];
}

/* -- SCB -- */

static uint32_t read_icsr(void *owner) {
  struct machine *m = owner;
  uint32_t value = core_read(m, UC_ARM_REG_XPSR) & 0x1ffu;
  value |= (uint32_t)m->scs.best << 12;
  if (m->scs.pending[SYSTICK_EXCEPTION])
    value |= 1u << 26;
  if (m->scs.pending[PENDSV_EXCEPTION])
    value |= 1u << 28;
  return value;
}

static bool write_icsr(void *owner, uint32_t value) {
  struct machine *m = owner;
  if (value & 1u << 28)
    m->scs.pending[PENDSV_EXCEPTION] = true;
  if (value & 1u << 27)
    m->scs.pending[PENDSV_EXCEPTION] = false;
  if (value & 1u << 26)
    m->scs.pending[SYSTICK_EXCEPTION] = true;
  if (value & 1u << 25)
    m->scs.pending[SYSTICK_EXCEPTION] = false;
  exceptions_refresh(m);
  return !(value & 1u << 31); /* no NMI */
}

static uint32_t cpuid(void *owner) {
  const struct machine *m = owner;
  return m->core == CORE_M4F ? 0x410fc241 : 0x410cc601;
}

static bool write_aircr(void *owner, uint32_t value) {
  if (value >> 16 != 0x05fa)
    return false;
  if (value & 4) {
    machine_check_stores(owner, "a reset");
    machine_request_reset(owner, RESET_SOFTWARE,
                          "the program asks for a reset");
  }
  return !(value & 0x0700); /* priority grouping is not modelled */
}

static bool write_ccr(void *owner, uint32_t value) {
  struct machine *m = owner;
  m->scs.ccr = value;
  return m->core == CORE_M4F && !(value & ~0x21bu);
}

static void *if_m4(void *owner, unsigned k) {
  const struct machine *m = owner;
  (void)k;
  return m->core == CORE_M4F ? owner : NULL;
}

#define OF_SCS(member) FIELD(struct machine, scs.member)
static const struct reg m4_registers[] = {
    {SCB_CFSR, 4, CLEAR_ONES, OF_SCS(cfsr)},
    {SCB_HFSR, 4, CLEAR_ONES, OF_SCS(hfsr)},
    {SCB_BFAR, 4, READ_ONLY, OF_SCS(bfar)},
    {SCB_CPACR, 4, PLAIN, OF_SCS(cpacr), .mask = 0x00f00000},
    {0}};

static const struct reg registers[] = {
    {SYST_CSR, 4, BY_FUNCTION, .get = read_systick, .set = write_systick},
    {SYST_RVR, 4, PLAIN, OF_SCS(systick_rvr), .mask = 0xffffff},
    {SYST_CVR, 4, BY_FUNCTION, .get = systick_value, .set = clear_systick},
    {SCB_CPUID, 4, .get = cpuid},
    {SCB_ICSR, 4, BY_FUNCTION, .get = read_icsr, .set = write_icsr},
    {SCB_VTOR, 4, PLAIN, OF_SCS(vtor), .mask = ~0x7fu},
    {SCB_AIRCR, 4, BY_FUNCTION, .constant = 0xfa050000, .set = write_aircr},
    {SCB_SCR, 4, PLAIN, OF_SCS(scr), .mask = 0x16},
    {SCB_CCR, 4, BY_FUNCTION, OF_SCS(ccr), .set = write_ccr},
    {0, .stride = SIZE_BYTES, .part = if_m4, .table = m4_registers},
    {0}};

static bool scs_read(void *owner, uint32_t offset, unsigned size,
                     uint32_t *value) {
  struct machine *m = owner;
  const uint8_t *priority = priorities(m, offset, size);
  if (priority) {
    memcpy(value, priority, size);
    return true;
  }
  if (size != 4)
    return false;
  if (offset >= NVIC_ISER && offset < NVIC_IPR)
    return nvic_read(m, offset, value);
  return register_read(registers, m, offset, size, value);
}

static bool scs_write(void *owner, uint32_t offset, unsigned size,
                      uint32_t value) {
  struct machine *m = owner;
  uint8_t *priority = priorities(m, offset, size);
  if (priority) {
    for (unsigned i = 0; i < size; i++)
      priority[i] = (uint8_t)(value >> 8 * i) & m->scs.priority_mask;
    exceptions_refresh(m);
    return true;
  }
  if (size != 4)
    return false;
  if (offset >= NVIC_ISER && offset < NVIC_IPR)
    return nvic_write(m, offset, value);
  return register_write(registers, m, offset, size, value);
}

void scs_reset(struct machine *m) {
  struct event systick = m->scs.systick;
  memset(&m->scs, 0, sizeof m->scs);
  m->scs.systick = systick;
  m->scs.systick.at = NEVER;
  m->scs.systick_zero_at = NEVER;
  m->scs.priority_mask = m->core == CORE_M4F ? 0xe0 : 0xc0;
  m->scs.ccr = m->core == CORE_M4F ? 0x200 : 0x208;
  m->scs.running = 256;
}

void scs_create(struct machine *m) {
  event_add(m, &m->scs.systick, systick_zero, m);
  machine_map(m, &(struct region){"the system control space", BASE, SIZE_BYTES,
                                  m, .read = scs_read, .write = scs_write});
  scs_reset(m);
}
