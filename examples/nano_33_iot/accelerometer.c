/* accelerometer.c - see accelerometer.h. State: none. A wait for the bus ends
   after 20 ms, so that a stuck bus is an error. */
#include "accelerometer.h"

#include "registers.h" /* firmware/port/samd21 */

enum {
  I2C = 4, /* SERCOM4 */
  I2C_HOST = 5 << 2,
  BAUD_400_KHZ = 53, /* (48 MHz / 400 kHz - 10 - 5 for the rise of SCL) / 2 */
  MB = 1,            /* INTFLAG: a byte was sent */
  SB = 2,            /* INTFLAG: a byte was received */
  RXNACK = 4,
  IDLE = 0x10,
  READ_NEXT = 2 << 16,
  STOP = 3 << 16,
  NO_ACKNOWLEDGE = 1 << 18,
  SDA_PIN = 32 + 8,
  SCL_PIN = 32 + 9,
  LONGEST_POLLS = 100000,
};
#define SERCOM_STATUS(n) REG16(0x4200081a + 0x400 * (n))
#define SERCOM_ADDR(n) REG32(0x42000824 + 0x400 * (n))

static void sync(void) {
  while (SERCOM_SYNCBUSY(I2C)) {
  }
}

static void command(uint32_t bits) {
  SERCOM_CTRLB(I2C) = bits;
  sync();
}

static bool wait(uint8_t flag) {
  for (int i = 0; i < LONGEST_POLLS; i++) {
    const uint8_t flags = SERCOM_INTFLAG(I2C);
    if (flags & (MB | SB)) {
      return (flags & flag) && !(SERCOM_STATUS(I2C) & RXNACK);
    }
  }
  return false;
}

static bool address(uint8_t value, uint8_t flag) {
  SERCOM_ADDR(I2C) = value;
  sync();
  return wait(flag);
}

static bool send(uint8_t byte) {
  SERCOM_DATA(I2C) = byte;
  sync();
  return wait(MB);
}

void sensor_bus_start(void) {
  PM_APBCMASK |= APBC_SERCOM(I2C);
  GCLK_CLKCTRL = (uint16_t)(GCLK_CHANNEL_SERCOM(I2C) | GCLK_CLKEN);
  PORT_PMUX(SDA_PIN) = FUNCTION_D | FUNCTION_D << 4; /* SCL's is the same */
  PORT_PINCFG(SDA_PIN) = PINCFG_PMUXEN;
  PORT_PINCFG(SCL_PIN) = PINCFG_PMUXEN;
  SERCOM_BAUD16(I2C) = BAUD_400_KHZ;
  SERCOM_CTRLA(I2C) = I2C_HOST;
  SERCOM_CTRLA(I2C) |= SERCOM_ENABLE;
  sync();
  SERCOM_STATUS(I2C) = IDLE;
  sync();
}

bool sensor_write(uint8_t to, uint8_t reg, uint8_t value) {
  const bool done = address((uint8_t)(to << 1), MB) && send(reg) && send(value);
  command(STOP);
  return done;
}

bool sensor_read(uint8_t from, uint8_t first, uint8_t *data, uint32_t count) {
  if (!address((uint8_t)(from << 1), MB) || !send(first) ||
      !address((uint8_t)(from << 1 | 1), SB)) {
    command(NO_ACKNOWLEDGE | STOP);
    return false;
  }
  uint32_t done = 0;
  do {
    data[done++] = (uint8_t)SERCOM_DATA(I2C);
    command(done < count ? READ_NEXT : NO_ACKNOWLEDGE | STOP);
  } while (done < count && wait(SB));
  if (done < count) {
    command(NO_ACKNOWLEDGE | STOP);
  }
  return done == count;
}

static bool set(uint8_t reg, uint8_t value) {
  return sensor_write(SENSOR_ADDRESS, reg, value);
}

bool accelerometer_start(uint8_t how) {
  enum { RESET = 1, INCREMENT = 4, WHOLE_SAMPLES = 0x40, CONTINUOUS = 6 };
  uint8_t identity = 0;
  sensor_bus_start();
  return sensor_read(SENSOR_ADDRESS, SENSOR_WHO_AM_I, &identity, 1) &&
         identity == SENSOR_IDENTITY && set(SENSOR_CTRL3_C, RESET) &&
         set(SENSOR_CTRL3_C, INCREMENT | WHOLE_SAMPLES) &&
         set(SENSOR_FIFO_CTRL3, 1) &&
         set(SENSOR_FIFO_CTRL5, (uint8_t)(how >> 4 << 3 | CONTINUOUS)) &&
         set(SENSOR_CTRL1_XL, how);
}

int accelerometer_read(int16_t (*samples)[3], int most) {
  enum { EMPTY = 0x10, FULL = 0x20, COUNT = 0xfff };
  uint8_t status[2], set_bytes[6];
  if (!sensor_read(SENSOR_ADDRESS, SENSOR_FIFO_STATUS1, status, 2)) {
    return -1;
  }
  int count = ((status[0] | status[1] << 8) & COUNT) / 3;
  for (int i = 0; i < count && i < most; i++) {
    if (!sensor_read(SENSOR_ADDRESS, SENSOR_FIFO_DATA_OUT_L, set_bytes, 6)) {
      return -1;
    }
    for (int axis = 0; axis < 3; axis++) {
      samples[i][axis] =
          (int16_t)(set_bytes[2 * axis] | set_bytes[2 * axis + 1] << 8);
    }
  }
  return count < most ? count : most;
}
