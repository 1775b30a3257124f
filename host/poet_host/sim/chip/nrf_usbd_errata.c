/* nrf_usbd_errata.c - undocumented registers, which the workarounds for the
   anomalies of USBD write (nRF52840 Errata; Nordic's nrfx_usbd.c). Without a
   workaround, a real chip fails only sometimes, but the model always stops the
   machine. State: the last fields of struct nrf_usbd. */
#include "nrf_usbd.h"

enum {
  TEST_SELECT = 0x800,
  TEST_VALUE = 0x804,
  TEST_PIPE = 0x7b4,      /* + 2 n selects IN endpoint n ... */
  TEST_DISARM_0 = 1 << 2, /* ... to drop its packet */
  TEST_DISARM = 1 << 1,
  MOVING_LATCH = 0xc1c,
  MOVING = 0x82,
  HIDDEN_BASE = 0x4006e000,
  HIDDEN_KEY = 0xc00,
  HIDDEN_171 = 0xc14,
  HIDDEN_187 = 0xd14,
  KEY = 0x9375,
};

void nrf_usbd_check_enable(struct nrf_usbd *u) {
  if (u->hidden_187 != 3)
    nrf_stop(&u->p, "it may not become ready when enabled like this "
                    "(anomaly 187)");
  else if (u->hidden_171 != 0xc0)
    nrf_stop(&u->p, "it may not reach its active state when enabled like this "
                    "(anomaly 171)");
}

void nrf_usbd_check_moving(struct nrf_usbd *u) {
  if (u->moving_latch != MOVING)
    nrf_stop(&u->p, "what the host sends during EasyDMA may be lost "
                    "(anomaly 199)");
}

void nrf_usbd_check_suspend(struct nrf_usbd *u) {
  if (u->hidden_187 != 3)
    nrf_stop(&u->p, "it may sleep through the host's resume (anomaly 211)");
}

static bool disarm(void *owner, uint32_t value) {
  struct nrf_usbd *u = owner;
  const uint32_t n = (u->test_selected - TEST_PIPE - 2) / 2 + 1;
  if (u->test_selected == TEST_PIPE && (value & TEST_DISARM_0))
    u->in[0].full = false;
  else if (n < NRF_USB_ENDPOINTS && (value & TEST_DISARM))
    u->in[n].full = false;
  return true;
}

#define OF_USBD(member) FIELD(struct nrf_usbd, member)
const struct reg nrf_usbd_errata_registers[] = {
    {TEST_SELECT, 4, PLAIN, OF_USBD(test_selected)},
    {TEST_VALUE, 4, BY_FUNCTION, .set = disarm},
    {MOVING_LATCH, 4, PLAIN, OF_USBD(moving_latch)},
    {0}};

/* -- the locked registers next to those of USBD; a key unlocks them -- */

static bool turn_key(void *owner, uint32_t value) {
  struct nrf_usbd *u = owner;
  u->hidden_open ^= value == KEY;
  return true;
}

static void check_open(void *owner) {
  struct nrf_usbd *u = owner;
  if (!u->hidden_open)
    nrf_stop(&u->p, "a register of its anomalies is written while locked");
}

static const struct reg hidden[] = {
    {HIDDEN_KEY, 4, BY_FUNCTION, OF_USBD(hidden_open), .set = turn_key},
    {HIDDEN_171, 4, PLAIN, OF_USBD(hidden_171), .after = check_open},
    {HIDDEN_187, 4, PLAIN, OF_USBD(hidden_187), .after = check_open},
    {0}};

void nrf_usbd_errata_create(struct nrf_usbd *u) {
  machine_window(u->p.chip->m, HIDDEN_BASE, 0x1000);
  machine_map(u->p.chip->m,
              &(struct region){"USBD's hidden registers", HIDDEN_BASE, 0x1000,
                               u, .registers = hidden});
}
