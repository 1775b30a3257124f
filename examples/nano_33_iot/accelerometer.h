/* accelerometer.h - the LSM6DS3 of a Nano 33 IoT, on the I2C of SERCOM4 (PB08
   SDA, PB09 SCL), by polling. The core's clock is 48 MHz from generator 0. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Registers of the LSM6DS3. */
enum {
  SENSOR_FIFO_CTRL1 = 0x06,
  SENSOR_FIFO_CTRL2 = 0x07,
  SENSOR_FIFO_CTRL3 = 0x08,
  SENSOR_FIFO_CTRL5 = 0x0a,
  SENSOR_WHO_AM_I = 0x0f,
  SENSOR_CTRL1_XL = 0x10,
  SENSOR_CTRL2_G = 0x11,
  SENSOR_CTRL3_C = 0x12,
  SENSOR_CTRL6_C = 0x15,
  SENSOR_STATUS_REG = 0x1e,
  SENSOR_OUTX_L_XL = 0x28,
  SENSOR_FIFO_STATUS1 = 0x3a,
  SENSOR_FIFO_DATA_OUT_L = 0x3e,
};
enum { SENSOR_IDENTITY = 0x69, SENSOR_ADDRESS = 0x6a };
/* For CTRL1_XL. A unit of a sample is 0.061 mg at 2 g, 0.122 at 4 g. */
enum { SENSOR_104_HZ = 4 << 4, SENSOR_2_G = 0, SENSOR_4_G = 2 << 2 };

/* Start I2C at 400 kHz. */
void sensor_bus_start(void);
/* Read or write registers from `first` on. False: nothing answers at this
   address, or the bus hangs. */
bool sensor_read(uint8_t address, uint8_t first, uint8_t *data, uint32_t count);
bool sensor_write(uint8_t address, uint8_t reg, uint8_t value);

/* Start the bus and the sensor: `how` is for CTRL1_XL, and the FIFO takes every
   sample. False: there is no LSM6DS3. */
bool accelerometer_start(uint8_t how);
/* Take samples (x, y, z) from the FIFO, oldest first: at most `most`. Returns
   their number, or -1 after an error of the bus. */
int accelerometer_read(int16_t (*samples)[3], int most);
