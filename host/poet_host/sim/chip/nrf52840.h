/* nrf52840.h - the state of all models of the nRF52840. Chapter names are those
   of the Product Specification 1.x. */
#pragma once

#include "machine.h"
#include "sdcard.h"
#include "usb_bus.h"

#define NRF52840_HZ 64000000u

enum {
  NRF_TIMERS = 3,
  NRF_SPIMS = 2,
  NRF_COMPARES = 6,
  NRF_USB_ENDPOINTS = 8, /* without the isochronous ones */
  NRF_USB_PACKET = 64,
};

struct nrf52840;

/* The part that all peripherals share ("Peripheral interface"): tasks at 0x000,
   events at 0x100, SHORTS, INTENSET, INTENCLR. */
struct nrf_peripheral {
  struct nrf52840 *chip;
  const char *name;
  uint32_t base;
  unsigned irq;
  uint32_t known_events, known_shorts; /* bits that the model covers */
  uint32_t events, enabled, shorts;
  bool (*task)(struct nrf_peripheral *p, uint32_t offset); /* NULL: none */
  /* all other registers; NULL: `read` and `write` handle them */
  const struct reg *registers;
  bool (*read)(struct nrf_peripheral *p, uint32_t offset, uint32_t *value);
  bool (*write)(struct nrf_peripheral *p, uint32_t offset, uint32_t value);
  /* Called before events are read or cleared, and after a change of registers.
     May be NULL. */
  void (*changed)(struct nrf_peripheral *p);
};

void nrf_add(struct nrf52840 *chip, struct nrf_peripheral *p);
void nrf_event(struct nrf_peripheral *p, unsigned bit);
void nrf_stop(struct nrf_peripheral *p, const char *text);

struct nrf_channel { /* EasyDMA */
  uint32_t pointer, count, amount;
};

struct nrf_power { /* and CLOCK */
  struct nrf_peripheral p;
  uint32_t debug_opened; /* APPROTECT.DISABLE */
  uint32_t converter;    /* DCDCEN */
  uint32_t reset_reason, power_fail;
  bool crystal_running, vbus, usb_supplied;
  struct event started, regulator;
};

struct nrf_wdt {
  struct nrf_peripheral p;
  uint32_t reload, enabled_reloads, config;
  bool running;
  struct event timeout, bite;
};

struct nrf_nvmc {
  struct nrf_peripheral p;
  uint32_t config, cache_config, part_config;
  uint32_t part_page, part_us; /* erased in parts, for so long; 0: no page */
};

struct nrf_gpio {
  struct nrf52840 *chip;
  struct nrf_port {
    uint32_t out, dir, config[32];
  } ports[2];
};

struct nrf_uarte {
  struct nrf_peripheral p;
  uint32_t enable, baud_rate, config, pins[4], error_source;
  struct nrf_channel rx, tx, rx_now, tx_now; /* registers, and as latched */
  bool receiving, sending;
  uint8_t fifo[4];
  unsigned fifo_count;
  uint64_t next_arrival;
  struct event sent, arriving;
};

struct nrf_spim {
  struct nrf_peripheral p;
  bool fast; /* SPIM3 */
  uint32_t enable, frequency, config, orc, pins[4];
  struct nrf_channel rx, tx, rx_now, tx_now;
  bool running;
  uint64_t started_at;
  struct event end;
};

struct nrf_timer {
  struct nrf_peripheral p;
  uint32_t bit_mode, prescaler, compare[NRF_COMPARES];
  bool running;
  uint32_t stopped_count;
  uint64_t started_at, caught_up_at;
  struct event due[NRF_COMPARES];
  struct nrf_compare {
    struct nrf_timer *timer;
    unsigned index;
  } owners[NRF_COMPARES];
};

/* One direction of an endpoint: a buffer between the bus and EasyDMA. */
struct nrf_pipe {
  struct nrf_channel dma;
  uint8_t packet[NRF_USB_PACKET];
  uint32_t size;
  bool full;  /* a packet waits, for the host (IN) or for EasyDMA (OUT) */
  bool taken; /* OUT: the next packet from the host is accepted */
  bool toggle, halted;
};

struct nrf_usbd {
  struct nrf_peripheral p;
  struct usb_bus *bus;
  uint32_t enable, pull_up, causes, captured, transferred, address;
  uint32_t in_enabled, out_enabled, toggle_selected;
  bool ready;
  struct nrf_pipe in[NRF_USB_ENDPOINTS], out[NRF_USB_ENDPOINTS];
  struct nrf_pipe *moving; /* pipe whose packet EasyDMA moves, or NULL */
  /* channel of that pipe, latched at the start */
  struct nrf_channel moving_now;
  bool moving_in;
  unsigned moving_number;
  uint8_t setup[8];
  uint32_t new_address;
  bool status_allowed, control_stalled;
  /* Registers of the workarounds for anomalies (nrf_usbd_errata.c). */
  uint32_t test_selected, moving_latch;
  uint32_t hidden_open, hidden_187, hidden_171;
  struct event started, moved;
};

struct nrf52840 {
  struct machine *m;
  struct nrf52840_config config;
  struct nrf_power power;
  struct nrf_usbd usbd;
  struct nrf_nvmc nvmc;
  struct nrf_wdt wdt;
  struct nrf_gpio gpio;
  struct nrf_uarte uarte;
  struct nrf_spim spims[NRF_SPIMS];
  struct nrf_timer timers[NRF_TIMERS];
  uint8_t factory[0x2000]; /* FICR and UICR */
};

void nrf_power_create(struct nrf52840 *chip);
void nrf_power_vbus(struct nrf52840 *chip, bool present);
void nrf_power_usb(struct nrf52840 *chip); /* USBD.ENABLE has changed */
void nrf_wdt_create(struct nrf52840 *chip);
void nrf_nvmc_create(struct nrf52840 *chip);
bool nrf_nvmc_writes(const struct nrf52840 *chip); /* is writing enabled? */
void nrf_gpio_create(struct nrf52840 *chip);
/* PIN_CNF of a pin. */
uint32_t nrf_gpio_config(const struct nrf52840 *chip, unsigned pin);
void nrf_uarte_create(struct nrf52840 *chip);
void nrf_spim_create(struct nrf52840 *chip, unsigned position);
void nrf_usbd_create(struct nrf52840 *chip);
void nrf_timer_create(struct nrf52840 *chip, unsigned position);
