/* power.c - resets and their causes, the supply voltage, and parts of the chip
   that hang because a test asks for it.

   State, in struct machine: `cause` of the latest reset, `supply_mv`, `hung`. A
   core that is locked up (ARMv6-M B1.5.11) executes nothing until a reset. */
#include "machine.h"
#include "sdcard.h"

void machine_request_reset(struct machine *m, enum reset_cause cause,
                           const char *text) {
  m->cause = cause;
  machine_stop(m, RUN_RESET, "%s", text);
}

enum reset_cause machine_reset_cause(const struct machine *m) {
  return m->cause;
}

void machine_set_supply(struct machine *m, uint32_t mv) {
  m->supply_mv = mv;
  if (m->card)
    m->card->supply_mv = mv;
  if (m->supply_changed)
    m->supply_changed(m->chip);
}

void machine_hang(struct machine *m, enum hang part) {
  m->hung |= 1u << part;
}

bool machine_hangs(const struct machine *m, enum hang part) {
  return m->hung >> part & 1;
}

void machine_wait_idle(struct machine *m, bool wait) {
  m->wait_idle = wait;
}

void core_lock_up(struct machine *m) {
  if (m->lock_up_resets)
    machine_request_reset(m, RESET_LOCK_UP, "the core is locked up");
  m->locked_up = true;
}
