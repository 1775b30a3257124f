/* nrf_usbd.h - the interface between the files of the USBD model. */
#pragma once

#include "nrf52840.h"

enum {
  USBD_USBRESET = 0, /* events, by bit */
  USBD_STARTED = 1,
  USBD_ENDEPIN = 2, /* event of endpoint 0; those of the others follow */
  USBD_EP0DATADONE = 10,
  USBD_ENDEPOUT = 12,
  USBD_USBEVENT = 22,
  USBD_EP0SETUP = 23,
  USBD_EPDATA = 24,
  USBD_CAUSE_SUSPEND = 1 << 8,
  USBD_CAUSE_RESUME = 1 << 9,
  USBD_CAUSE_READY = 1 << 11,
};

void nrf_usbd_cause(struct nrf_usbd *u, uint32_t cause);
/* End the current move of EasyDMA now. */
void nrf_usbd_finish_moving(struct nrf_usbd *u);

/* -- nrf_usbd_bus.c -- */
void nrf_usbd_bus_create(struct nrf_usbd *u);
/* Set the state after a reset of the bus. */
void nrf_usbd_forget(struct nrf_usbd *u);

/* -- nrf_usbd_errata.c -- */
void nrf_usbd_errata_create(struct nrf_usbd *u);
extern const struct reg nrf_usbd_errata_registers[];
void nrf_usbd_check_enable(struct nrf_usbd *u);
void nrf_usbd_check_moving(struct nrf_usbd *u);
void nrf_usbd_check_suspend(struct nrf_usbd *u);
