/*
 * health.c - why the chip was last reset.
 *
 * State: `noted`, which the start of the program does not clear, so that it
 * survives every reset but that of power-on. A boot loader may run in between:
 * it uses the ends of the RAM, but not the middle, where the linker puts this
 * section. `seal` shows whether the note is whole. `tries` counts the starts of
 * the job on the card since the latest step that was committed. `last` is what
 * was found at the start.
 *
 * The watchdog's interrupt comes before its reset and renews the note. If the
 * note is not renewed, interrupts were off, or the core was locked up.
 */
#include "health.h"

#include "card.h"
#include "chip.h"

enum { SEAL = 0x9e370000, CAUSE = 0xff, TRIES = 3, FLASH_STATEMENTS = 8 };

static struct {
  uint32_t seal; /* SEAL | exception << 8 | cause */
  uint32_t at, from, statement;
  uint32_t tries; /* committed step << 2 | number of tries, at most TRIES */
} noted __attribute__((section(".retained")));

static struct poet_health last;

void health_note(uint32_t cause, uint32_t at, uint32_t from) {
  noted.at = at;
  noted.from = from;
  noted.seal = SEAL | cause;
}

void health_start(void) {
  const uint32_t what = noted.seal ^ SEAL;
  last.reset = chip_reset_cause();
  if (what >> 16 == 0 && (last.reset == POET_RESET_requested ||
                          last.reset == POET_RESET_watchdog)) {
    /* A reset that was requested without a note keeps its own name. */
    if (last.reset == POET_RESET_watchdog || what != POET_RESET_lock_up) {
      last.reset = what & CAUSE;
    }
    last.exception = (uint8_t)(what >> 8);
    last.at = noted.at;
    last.caller = noted.from;
    last.statement = noted.statement;
  }
  if (what >> 16 || last.reset < POET_RESET_brown_out) {
    noted.tries = 0;
  } else if ((noted.tries & TRIES) == TRIES) {
    last.reset |= POET_RESET_gave_up;
  }
  noted.statement = 0;
  health_note(POET_RESET_lock_up, 0, 0);
}

void health_moved(void) {
  noted.seal = SEAL | POET_RESET_lock_up;
  chip_feed_watchdog();
}

unsigned health_led_changes(unsigned changes, int storage_status) {
  return changes                              ? changes - 1
         : last.reset >= POET_RESET_brown_out ? 5
         : storage_status                     ? 3
                                              : 1;
}

/* The LED flashes once in each step, for the first statements: one may be too
 * short to see. For longer, it would draw as much power as the processor. */
void health_alive(void *context, uint32_t statement) {
  const struct poet *p = context;
  const uint32_t step = p->committed.now.step << 2;
  if ((noted.tries ^ step) > TRIES) { /* a step was committed */
    noted.tries = step | ((noted.tries & TRIES) != 0);
  }
  chip_led(statement < FLASH_STATEMENTS);
  noted.statement = statement;
  health_moved();
}

void health_bites(uint32_t at, uint32_t from) {
  health_note(chip_spi_moves() ? POET_RESET_dma : POET_RESET_watchdog, at,
              from);
}

void health_restart(enum poet_reset cause, uint32_t at) {
  health_note(cause, at, 0);
  chip_restart();
}

bool health_tries_job(void) {
  if (last.reset & POET_RESET_gave_up) {
    return false;
  }
  noted.tries++;
  return true;
}

void health_forget_tries(void) {
  noted.tries = 0;
}

void health_report(void *context, struct poet_health *health) {
  (void)context;
  *health = last;
  health->card_khz = card_khz();
}
