/*
 * port.c - the functions of the port that an application may leave out.
 *
 * This file keeps no state.
 */
#include "runtime.h"

uint32_t poet_ticks(const struct poet_port *port) {
  return POET_HAS(port, ticks) ? port->ticks(port->context) : 0;
}

void poet_usage(const struct poet_port *port, struct poet_usage *usage) {
  if (POET_HAS(port, usage)) {
    port->usage(port->context, usage);
  } else {
    *usage = (struct poet_usage){0};
  }
}

void poet_idle(const struct poet_port *port) {
  if (POET_HAS(port, idle)) {
    port->idle(port->context);
  }
}

bool poet_is_flash(const struct poet *p) {
  return p->port->is_flash ? p->port->is_flash(p->port->context)
                           : POET_LIBRARY && p->port->erase;
}
