/*
 * health.h - why the chip was last reset, and the signs of life that keep the
 * watchdog from the next reset.
 *
 * The chip's interrupt of the watchdog, and faults, leave notes for the program
 * that runs after the reset.
 */
#ifndef POET_HEALTH_H
#define POET_HEALTH_H

#include "poet/poet.h"

/* Find out why the chip was reset. Call this first, before any note. */
void health_start(void);
/* Statement `statement` begins, or goes on. `context` is the struct poet, whose
 * committed step shows whether the job makes progress. */
void health_alive(void *context, uint32_t statement);
/* A block has been moved, or the board waits for a host: both are signs of
 * life. */
void health_moved(void);
/* Count the changes of the LED until its flashes end. If there are none, return
 * those of three flashes after a reset that nobody wanted, of two if the
 * storage cannot be used, and otherwise of one. */
unsigned health_led_changes(unsigned changes, int storage_status);
/* Note what the chip does, shortly before the watchdog resets it. */
void health_bites(uint32_t at, uint32_t from);
/* Note the cause of the next reset: POET_RESET_*, and the number of a fault in
 * the second byte. */
void health_note(uint32_t cause, uint32_t at, uint32_t from);
/* Note the cause of a reset, and reset the chip. */
_Noreturn void health_restart(enum poet_reset cause, uint32_t at);
/* Count a try of the job on the card. Return false, and count none, if it has
 * failed at one step as often as it may be tried. */
bool health_tries_job(void);
/* The job may be tried again: it has ended, or a host has connected. */
void health_forget_tries(void);
void health_report(void *context, struct poet_health *health);

#endif
