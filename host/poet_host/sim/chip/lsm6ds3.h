/* lsm6ds3.h - an accelerometer LSM6DS3 on I2C: its state, and its side of the
   bus. Section and table numbers are those of the data sheet DocID026899,
   revision 8. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct scene;

enum { LSM6DS3_ADDRESS = 0x6a /* SA0 low: 6.1.1 */, LSM6DS3_WORDS = 4096 };

struct lsm6ds3 {
  struct scene *scene;
  /* the registers that can be written */
  uint8_t threshold_low, threshold_high, decimation, fifo_control;
  uint8_t accelerometer, common, power_mode, axes;
  uint8_t address; /* of the register that the next access reaches */
  bool addressed;  /* the host has sent `address` in this transfer */
  uint64_t since_ns, samples, next_ns; /* since the rate was set */
  uint8_t out[6];
  bool fresh;        /* STATUS_REG.XLDA */
  uint8_t half_read; /* axes whose low byte was read, but not the high one */
  uint16_t fifo[LSM6DS3_WORDS];
  uint32_t fifo_first, fifo_count, undecimated;
  bool overrun;
  uint64_t counted_ns, charge_ua_ns; /* charge up to `counted_ns` */
};

void lsm6ds3_power_on(struct lsm6ds3 *s, struct scene *scene, uint64_t now_ns);
/* A start condition, then an address and the direction. Returns the
   acknowledgement. */
bool lsm6ds3_start(struct lsm6ds3 *s, uint8_t address, bool read);
bool lsm6ds3_write(struct lsm6ds3 *s, uint8_t byte);
uint8_t lsm6ds3_read(struct lsm6ds3 *s);
/* Return the charge that the sensor has drawn, in microamperes x nanoseconds.
 */
uint64_t lsm6ds3_charge(struct lsm6ds3 *s);
