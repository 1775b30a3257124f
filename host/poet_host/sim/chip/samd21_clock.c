/* samd21_clock.c - Power Manager, System Controller and Generic Clock
   Controller (sections 16, 17 and 15), but only the parts for the internal
   oscillators, the 32 kHz crystal and the DFLL.

   State: struct samd21_clock. Frequencies are not stored: they are computed
   from the registers, and from the ticks at which crystal and DFLL are ready.
   After each change of generator 0, the model checks the core's clock and wait
   states. */
#include "samd21.h"

enum {
  PM_BASE = 0x40000400,
  PM_CPUSEL = 0x08,
  PM_APBASEL = 0x09,
  PM_AHBMASK = 0x14,
  PM_APBAMASK = 0x18,
  PM_RCAUSE = 0x38,
  SYSCTRL_BASE = 0x40000800,
  SYSCTRL_PCLKSR = 0x0c,
  SYSCTRL_XOSC32K = 0x14,
  SYSCTRL_OSC8M = 0x20,
  SYSCTRL_DFLLCTRL = 0x24,
  SYSCTRL_DFLLVAL = 0x28,
  SYSCTRL_DFLLMUL = 0x2c,
  SYSCTRL_BOD33 = 0x34,
  PCLKSR_XOSC32KRDY = 1 << 1,
  PCLKSR_OSC8MRDY = 1 << 3,
  PCLKSR_DFLLRDY = 1 << 4,
  PCLKSR_DFLLLCKF = 1 << 6,
  PCLKSR_DFLLLCKC = 1 << 7,
  PCLKSR_BOD33RDY = 1 << 9,
  PCLKSR_BOD33DET = 1 << 10,
  PCLKSR_B33SRDY = 1 << 11,
  BOD33_ENABLE = 2,
  BOD33_ACTION = 3 << 3,
  BOD33_RESET = 1 << 3,
  BOD33_FUSES = 7 << 16 | BOD33_RESET | BOD33_ENABLE,
  DFLL_ENABLE = 2,
  DFLL_MODE = 4,
  DFLL_USBCRM = 1 << 5,
  DFLL_ONDEMAND = 1 << 7,
  XOSC32K_ENABLE = 2,
  GCLK_BASE = 0x40000c00,
  GCLK_CTRL = 0x0,
  GCLK_STATUS = 0x1,
  GCLK_CLKCTRL = 0x2,
  GCLK_GENCTRL = 0x4,
  GCLK_GENDIV = 0x8,
  GEN_ENABLE = 1 << 16,
  GEN_DIVSEL = 1 << 20,
  CLOCK_ENABLE = 1 << 14,
  CRYSTAL_HZ = 32768,
  DFLL_LOCK_TICKS = 48 * 500, /* tens of reference cycles: 37.9 */
  DFLL_BUSY_CYCLES = 3,       /* until DFLLRDY: not in the data sheet */
  BOD_BUSY_CYCLES = 3,        /* until B33SRDY: neither */
};

/* -- frequencies -- */

static uint32_t generator_hz(const struct samd21_clock *c, unsigned generator);

static uint32_t source_hz(const struct samd21_clock *c, unsigned source) {
  uint64_t now = c->chip->m->now;
  switch (source) {
  case 2:
    return generator_hz(c, 1);
  case 3:
    return CRYSTAL_HZ; /* OSCULP32K */
  case 5:
    return now >= c->xosc32k_ready_at ? CRYSTAL_HZ : 0;
  case 6:
    return 8000000u >> (c->osc8m >> 8 & 3);
  case 7:
    return (c->dfll_control & DFLL_ENABLE) && now >= c->dfll_locked_at
               ? SAMD21_HZ
               : 0;
  default:
    return 0;
  }
}

static uint32_t generator_hz(const struct samd21_clock *c, unsigned generator) {
  if (generator >= SAMD21_GENERATORS ||
      !(c->gen_control[generator] & GEN_ENABLE))
    return 0;
  uint32_t control = c->gen_control[generator];
  uint32_t divider = c->gen_divider[generator];
  uint32_t hz = source_hz(c, control >> 8 & 31);
  if (control & GEN_DIVSEL)
    return hz >> ((divider & 31) + 1);
  return hz / (divider ? divider : 1);
}

uint32_t samd21_clock_hz(const struct samd21 *chip, unsigned channel) {
  uint16_t control = chip->clock.clock_control[channel];
  if (!(control & CLOCK_ENABLE))
    return 0;
  return generator_hz(&chip->clock, control >> 8 & 15);
}

static void core_clock_changed(void *owner) {
  struct samd21_clock *c = owner;
  struct machine *m = c->chip->m;
  uint32_t hz = generator_hz(c, 0) >> c->cpu_divider_log2;
  if (hz == 0 || SAMD21_HZ % hz != 0) {
    machine_stop(m, RUN_FAULT,
                 "generic clock generator 0 runs the core at %u Hz: it must "
                 "be on, stable, and divide 48 MHz",
                 hz);
    return;
  }
  m->ticks_per_cycle = SAMD21_HZ / hz;
  samd21_nvm_check(c->chip);
}

bool samd21_bus_clock(struct samd21 *chip, unsigned bus, unsigned bit,
                      const char *name) {
  if (chip->clock.apb_mask[bus] >> bit & 1)
    return true;
  machine_stop(chip->m, RUN_FAULT,
               "%s has no bus clock: set bit %u of PM.APB%cMASK first", name,
               bit, "ABC"[bus]);
  return false;
}

/* -- PM -- */

static uint32_t reset_cause(void *owner) {
  static const uint8_t bits[] = {
      [RESET_POWER_ON] = 1,    [RESET_PIN] = 0x10,     [RESET_SOFTWARE] = 0x40,
      [RESET_WATCHDOG] = 0x20, [RESET_LOCK_UP] = 0x20, [RESET_BROWN_OUT] = 4};
  const struct samd21_clock *c = owner;
  return bits[c->chip->config.cause];
}

#define OF_CLOCK(member) FIELD(struct samd21_clock, member)
static const struct reg pm_registers[] = {
    {PM_CPUSEL, 1, PLAIN, OF_CLOCK(cpu_divider_log2), .mask = 7,
     .after = core_clock_changed},
    {PM_APBASEL, 1, ZERO_ONLY, .count = 3}, /* buses at the core's clock only */
    {PM_AHBMASK, 4, PLAIN, OF_CLOCK(ahb_mask)},
    {PM_APBAMASK, 4, PLAIN, OF_CLOCK(apb_mask[0]), .count = 3},
    {PM_RCAUSE, 1, .get = reset_cause},
    {0}};

/* -- SYSCTRL -- */

/* Level 7 is typically 1.745 V, level 39 is 2.84 V (table "BOD33 levels"). */
static bool supply_is_low(const struct samd21_clock *c) {
  const uint32_t level = c->bod33 >> 16 & 63;
  const uint32_t mv = 1745 + level * 1095 / 32 - 7 * 1095 / 32;
  return (c->bod33 & BOD33_ENABLE) && c->chip->m->supply_mv < mv;
}

static void check_supply(void *chip) {
  const struct samd21_clock *c = &((struct samd21 *)chip)->clock;
  if (supply_is_low(c) && (c->bod33 & BOD33_ACTION) == BOD33_RESET)
    machine_request_reset(c->chip->m, RESET_BROWN_OUT,
                          "the supply is below the level of BOD33");
}

/* A write is ignored while B33SRDY is zero (17.6.9.3). */
static bool set_brown_out(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  struct machine *m = c->chip->m;
  if (m->now >= c->bod_busy_until) {
    if ((c->bod33 & BOD33_ENABLE) &&
        (c->bod33 ^ value) & ~(uint32_t)BOD33_ENABLE)
      machine_stop(
          m, RUN_FAULT,
          "SYSCTRL: BOD33 changes while it is enabled, which may reset "
          "the chip (17.8.14)");
    c->bod_busy_until = m->now + BOD_BUSY_CYCLES * m->ticks_per_cycle;
    c->bod33 = value;
    check_supply(c->chip);
  }
  return true;
}

static uint32_t pclksr(void *owner) {
  const struct samd21_clock *c = owner;
  uint64_t now = c->chip->m->now;
  uint32_t value = PCLKSR_OSC8MRDY;
  if (now >= c->bod_busy_until)
    value |= PCLKSR_B33SRDY;
  if (c->bod33 & BOD33_ENABLE)
    value |= PCLKSR_BOD33RDY;
  if (supply_is_low(c))
    value |= PCLKSR_BOD33DET;
  if (now >= c->xosc32k_ready_at)
    value |= PCLKSR_XOSC32KRDY;
  if (!(c->dfll_control & DFLL_ONDEMAND) && now >= c->dfll_busy_until)
    value |= PCLKSR_DFLLRDY;
  if ((c->dfll_control & (DFLL_MODE | DFLL_USBCRM)) == DFLL_MODE &&
      now >= c->dfll_locked_at)
    value |= PCLKSR_DFLLLCKF | PCLKSR_DFLLLCKC;
  return value;
}

static bool start_crystal(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  /* STARTUP (17.8.6): number of crystal cycles before the crystal counts as
     stable */
  static const uint32_t startup[8] = {1,     32,    2048,  4096,
                                      16384, 32768, 65536, 131072};
  bool on = value & XOSC32K_ENABLE;
  if (on && !(c->xosc32k & XOSC32K_ENABLE) && !c->chip->config.no_crystal)
    c->xosc32k_ready_at = c->chip->m->now + (uint64_t)startup[value >> 8 & 7] *
                                                SAMD21_HZ / CRYSTAL_HZ;
  if (!on)
    c->xosc32k_ready_at = NEVER;
  c->xosc32k = (uint16_t)value;
  return true;
}

/* Return whether a write of a DFLL register is ignored, because DFLLRDY is
   still zero after the last one (17.6.14). If not, it becomes zero. */
static bool dfll_ignores(struct samd21_clock *c) {
  const struct machine *m = c->chip->m;
  if (m->now < c->dfll_busy_until)
    return true;
  c->dfll_busy_until = m->now + DFLL_BUSY_CYCLES * m->ticks_per_cycle;
  return false;
}

static bool set_dfll_value(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  if (!dfll_ignores(c))
    c->dfll_value = value;
  return true;
}

static bool set_dfll_multiplier(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  if (!dfll_ignores(c))
    c->dfll_multiplier = value;
  return true;
}

/* Follow the start of USB's frames, which the model takes for exact. Without
   them the DFLL runs at the frequency of DFLLVAL (17.6.7.2.2). */
static void check_recovery(const struct samd21_clock *c) {
  const uint32_t calibrated = SAMD21_DFLL_COARSE;
  if (c->dfll_value >> 10 != calibrated ||
      (c->dfll_multiplier & 0xffff) != 48000)
    machine_stop(c->chip->m, RUN_FAULT,
                 "the DFLL recovers USB's clock from DFLLVAL.COARSE %u and "
                 "DFLLMUL.MUL %u: set the calibrated %u, and 48000",
                 c->dfll_value >> 10, c->dfll_multiplier & 0xffff, calibrated);
}

static bool start_dfll(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  struct machine *m = c->chip->m;
  if (dfll_ignores(c))
    return true;
  bool was_on_demand = c->dfll_control & DFLL_ONDEMAND;
  if (was_on_demand && (value & ~(uint32_t)DFLL_ENABLE)) {
    machine_stop(m, RUN_FAULT,
                 "DFLLCTRL: ONDEMAND must be cleared, and PCLKSR.DFLLRDY "
                 "awaited, before anything else (errata 1.2.1)");
    return true;
  }
  const bool recovers = value & DFLL_USBCRM;
  if (recovers)
    check_recovery(c);
  if ((value & DFLL_MODE) && !recovers &&
      samd21_clock_hz(c->chip, 0) != CRYSTAL_HZ) {
    machine_stop(m, RUN_FAULT,
                 "the DFLL's closed loop needs a running reference of 32768 Hz "
                 "on generic clock 0");
    return true;
  }
  if (value & DFLL_ENABLE)
    c->dfll_locked_at =
        m->now + ((value & DFLL_MODE) && !recovers ? DFLL_LOCK_TICKS : 384);
  c->dfll_control = (uint16_t)value;
  return true;
}

static const struct reg sysctrl_registers[] = {
    {SYSCTRL_PCLKSR, 4, .get = pclksr},
    {SYSCTRL_XOSC32K, 2, BY_FUNCTION, OF_CLOCK(xosc32k), .set = start_crystal},
    {SYSCTRL_OSC8M, 4, PLAIN, OF_CLOCK(osc8m), .after = core_clock_changed},
    {SYSCTRL_DFLLCTRL, 2, BY_FUNCTION, OF_CLOCK(dfll_control),
     .set = start_dfll},
    {SYSCTRL_BOD33, 4, BY_FUNCTION, OF_CLOCK(bod33), .set = set_brown_out},
    {SYSCTRL_DFLLVAL, 4, BY_FUNCTION, OF_CLOCK(dfll_value),
     .set = set_dfll_value},
    {SYSCTRL_DFLLMUL, 4, BY_FUNCTION, OF_CLOCK(dfll_multiplier),
     .set = set_dfll_multiplier},
    {0}};

/* -- GCLK -- */

static uint32_t gclk_status(void *owner) {
  const struct samd21_clock *c = owner;
  return c->chip->m->now < c->gclk_busy_until ? 0x80 : 0;
}

static void gclk_written(void *owner) {
  struct samd21_clock *c = owner;
  c->gclk_busy_until = c->chip->m->now + 48;
}

static bool is_reset(void *owner, uint32_t value) {
  (void)owner;
  return value == 1; /* software reset: assumed to come first, so ignored */
}

static bool write_clock(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  c->clock_control[value & 63] = (uint16_t)value;
  return true;
}

static bool write_generator(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  const uint32_t generator = value & 15;
  if (generator >= SAMD21_GENERATORS)
    return false;
  c->gen_control[generator] = value;
  if (generator == 0)
    core_clock_changed(c);
  return true;
}

static bool write_divider(void *owner, uint32_t value) {
  struct samd21_clock *c = owner;
  const uint32_t generator = value & 15;
  if (generator >= SAMD21_GENERATORS)
    return false;
  c->gen_divider[generator] = value >> 8 & 0xffff;
  if (generator == 0)
    core_clock_changed(c);
  return true;
}

static const struct reg gclk_registers[] = {
    {GCLK_CTRL, 1, BY_FUNCTION, .set = is_reset, .after = gclk_written},
    {GCLK_STATUS, 1, .get = gclk_status},
    {GCLK_CLKCTRL, 2, WRITE_ONLY, .set = write_clock, .after = gclk_written},
    {GCLK_GENCTRL, 4, WRITE_ONLY, .set = write_generator,
     .after = gclk_written},
    {GCLK_GENDIV, 4, WRITE_ONLY, .set = write_divider, .after = gclk_written},
    {0}};

void samd21_clock_create(struct samd21 *chip) {
  struct samd21_clock *c = &chip->clock;
  c->chip = chip;
  c->ahb_mask = 0x7f;
  c->apb_mask[0] = c->apb_mask[1] = 0x7f;
  c->apb_mask[2] = 0x10000;
  c->osc8m = 0x87070382; /* runs on demand, divided by 8 */
  c->bod33 = BOD33_FUSES;
  chip->m->supply_changed = check_supply;
  c->dfll_control = DFLL_ONDEMAND;
  c->xosc32k = 0x80;
  c->xosc32k_ready_at = c->dfll_locked_at = NEVER;
  c->gen_control[0] = GEN_ENABLE | 6 << 8;
  chip->m->ticks_per_cycle = 48;
  machine_map(chip->m, &(struct region){"PM", PM_BASE, 0x400, c,
                                        .registers = pm_registers});
  machine_map(chip->m, &(struct region){"SYSCTRL", SYSCTRL_BASE, 0x400, c,
                                        .registers = sysctrl_registers});
  machine_map(chip->m, &(struct region){"GCLK", GCLK_BASE, 0x400, c,
                                        .registers = gclk_registers});
}
