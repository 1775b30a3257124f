/* samd21_sercom.h - the interface between samd21_sercom.c and the I2C host of
   samd21_i2c.c. */
#pragma once

#include "samd21.h"

enum { SYNC_TICKS = 24, I2C_MB = 1, I2C_SB = 2 };

/* Frequency of the core's clock, or 0 while it is off. */
uint32_t sercom_core_hz(const struct samd21_sercom *s);
void sercom_raise(void *sercom);
void sercom_stop(struct samd21_sercom *s, const char *text);

void i2c_enable(struct samd21_sercom *s);
/* The end of a byte on the wire. */
void i2c_shifted(struct samd21_sercom *s);
/* Accesses to registers, as in registers.h. */
bool i2c_control_b(struct samd21_sercom *s, uint32_t value, bool enabled);
bool i2c_status(struct samd21_sercom *s, uint32_t value);
bool i2c_address(struct samd21_sercom *s, uint32_t value);
bool i2c_send(struct samd21_sercom *s, uint32_t value);
uint32_t i2c_receive(struct samd21_sercom *s);
