/* nrf_usbd_errata.c - registers without a public description that the
   workarounds for USBD's anomalies write (nRF52840 Errata; Nordic's
   nrfx_usbd.c). A chip without a workaround fails now and then; the model stops
   the machine each time. State: the last fields of struct nrf_usbd. */
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

static void disarm(struct nrf_usbd *u, uint32_t value) {
  const uint32_t n = (u->test_selected - TEST_PIPE - 2) / 2 + 1;
  if (u->test_selected == TEST_PIPE && (value & TEST_DISARM_0))
    u->in[0].full = false;
  else if (n < NRF_USB_ENDPOINTS && (value & TEST_DISARM))
    u->in[n].full = false;
}

bool nrf_usbd_errata_read(struct nrf_usbd *u, uint32_t offset,
                          uint32_t *value) {
  *value = offset == TEST_SELECT    ? u->test_selected
           : offset == MOVING_LATCH ? u->moving_latch
                                    : 0;
  return offset == TEST_SELECT || offset == TEST_VALUE ||
         offset == MOVING_LATCH;
}

bool nrf_usbd_errata_write(struct nrf_usbd *u, uint32_t offset,
                           uint32_t value) {
  if (offset == TEST_SELECT)
    u->test_selected = value;
  else if (offset == TEST_VALUE)
    disarm(u, value);
  else if (offset == MOVING_LATCH)
    u->moving_latch = value;
  else
    return false;
  return true;
}

/* -- a block next to USBD's, which a key unlocks -- */

static uint32_t *hidden(struct nrf_usbd *u, uint32_t offset) {
  return offset == HIDDEN_KEY   ? &u->hidden_open
         : offset == HIDDEN_171 ? &u->hidden_171
         : offset == HIDDEN_187 ? &u->hidden_187
                                : NULL;
}

static bool hidden_read(void *owner, uint32_t offset, unsigned size,
                        uint32_t *value) {
  const uint32_t *r = hidden(owner, offset);
  if (r)
    *value = *r;
  return r && size == 4;
}

static bool hidden_write(void *owner, uint32_t offset, unsigned size,
                         uint32_t value) {
  struct nrf_usbd *u = owner;
  uint32_t *r = hidden(u, offset);
  if (!r || size != 4)
    return false;
  if (offset == HIDDEN_KEY)
    u->hidden_open ^= value == KEY;
  else if (!u->hidden_open)
    nrf_stop(&u->p, "a register of its anomalies is written while locked");
  else
    *r = value;
  return true;
}

void nrf_usbd_errata_create(struct nrf_usbd *u) {
  machine_window(u->p.chip->m, HIDDEN_BASE, 0x1000);
  machine_map(u->p.chip->m,
              &(struct region){"USBD's hidden registers", HIDDEN_BASE, 0x1000,
                               u, .read = hidden_read, .write = hidden_write});
}
