/* lsm6ds3.c - the LSM6DS3 as an accelerometer with FIFO. It has no gyroscope,
   no interrupt pins and no embedded functions here: an access that needs them
   stops the machine.

   State: struct lsm6ds3. Samples are taken when the bus, or the meter, next
   looks at the sensor (advance), at the times that the data rate gives. A
   sample is the scene's acceleration at that time, rounded to the full scale's
   resolution, and clamped. There is no noise, and no filter. The rates are
   exact. */
#include "lsm6ds3.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "machine.h"
#include "scene.h"

enum { /* section 9 */
       FIFO_CTRL1 = 0x06,
       FIFO_CTRL2 = 0x07,
       FIFO_CTRL3 = 0x08,
       FIFO_CTRL4 = 0x09,
       FIFO_CTRL5 = 0x0a,
       INT1_CTRL = 0x0d,
       INT2_CTRL = 0x0e,
       WHO_AM_I = 0x0f,
       CTRL1_XL = 0x10,
       CTRL2_G = 0x11,
       CTRL3_C = 0x12,
       CTRL4_C = 0x13,
       CTRL5_C = 0x14,
       CTRL6_C = 0x15,
       CTRL7_G = 0x16,
       CTRL8_XL = 0x17,
       CTRL9_XL = 0x18,
       STATUS_REG = 0x1e,
       OUTX_L_XL = 0x28,
       OUTX_H_XL = 0x29,
       OUTY_L_XL = 0x2a,
       OUTY_H_XL = 0x2b,
       OUTZ_L_XL = 0x2c,
       OUTZ_H_XL = 0x2d,
       FIFO_STATUS1 = 0x3a,
       FIFO_STATUS2 = 0x3b,
       FIFO_STATUS3 = 0x3c,
       FIFO_STATUS4 = 0x3d,
       FIFO_DATA_OUT_L = 0x3e,
       FIFO_DATA_OUT_H = 0x3f,
};
enum {
  SW_RESET = 1,
  IF_INC = 4,
  BDU = 0x40,
  XL_HM_MODE = 0x10, /* 1: low-power and normal mode */
  ALL_AXES = 0x38,
  FIFO_MODE = 7,
  STOP_WHEN_FULL = 1,
  CONTINUOUS = 6,
  FASTEST = 10, /* code of 6.66 kHz */
  EMPTY = 0x10,
  FULL = 0x20,
  OVER_RUN = 0x40,
  FTH = 0x80,
};

static unsigned rate(const struct lsm6ds3 *s) {
  return s->accelerometer >> 4;
}

static uint64_t sample_time(const struct lsm6ds3 *s, uint64_t number) {
  static const uint32_t tenths_hz[FASTEST + 1] = {
      0, 125, 260, 520, 1040, 2080, 4160, 8330, 16600, 33300, 66600};
  if (!rate(s))
    return NEVER;
  return s->since_ns + number * 10000000000u / tenths_hz[rate(s)];
}

/* Table 4, typical. In high-performance mode it draws the same at all rates up
   to 1.6 kHz; above, the table has no figure. */
static uint32_t microamperes(const struct lsm6ds3 *s) {
  if (!rate(s))
    return 6;
  if (!(s->power_mode & XL_HM_MODE) || rate(s) > 5)
    return 240;
  return rate(s) > 3 ? 70 : 24; /* normal mode, low-power mode */
}

/* Sensitivity: table 3. */
static int16_t in_bits(const struct lsm6ds3 *s, double g) {
  static const double mg[4] = {0.061, 0.488, 0.122, 0.244};
  const double raw = round(g * 1000 / mg[s->accelerometer >> 2 & 3]);
  return (int16_t)fmax(INT16_MIN, fmin(INT16_MAX, raw));
}

/* In FIFO mode, a full FIFO takes nothing until it is cleared. */
static void put_set(struct lsm6ds3 *s, const int16_t set[3]) {
  static const uint8_t factors[8] = {0, 1, 2, 3, 4, 8, 16, 32};
  const unsigned mode = s->fifo_control & FIFO_MODE;
  const unsigned fifo_rate = s->fifo_control >> 3;
  if (mode == 0 || !fifo_rate || !s->decimation)
    return;
  if (fifo_rate != rate(s))
    machine_stop(s->scene->m, RUN_FAULT,
                 "LSM6DS3: ODR_FIFO is not ODR_XL, which is not modelled");
  if (s->undecimated++ % factors[s->decimation] != 0 ||
      (mode == STOP_WHEN_FULL && s->overrun))
    return;
  if (s->fifo_count + 3 > LSM6DS3_WORDS) {
    s->overrun = true;
    if (mode == STOP_WHEN_FULL)
      return;
    s->fifo_first += 3;
    s->fifo_count -= 3;
  }
  for (unsigned i = 0; i < 3; i++)
    s->fifo[(s->fifo_first + s->fifo_count++) % LSM6DS3_WORDS] =
        (uint16_t)set[i];
}

static void advance(struct lsm6ds3 *s, uint64_t now_ns) {
  for (; s->next_ns <= now_ns; s->next_ns = sample_time(s, ++s->samples)) {
    const double *g = scene_motion(s->scene, s->next_ns);
    int16_t set[3];
    for (unsigned i = 0; i < 3; i++) {
      set[i] = in_bits(s, g[i]);
      if (!(s->common & BDU) || !(s->half_read >> i & 1))
        memcpy(s->out + 2 * i, &set[i], 2);
    }
    s->fresh = true;
    put_set(s, set);
  }
  s->charge_ua_ns += microamperes(s) * (now_ns - s->counted_ns);
  s->counted_ns = now_ns;
}

uint64_t lsm6ds3_charge(struct lsm6ds3 *s) {
  advance(s, scene_ns(s->scene));
  return s->charge_ua_ns;
}

/* -- registers -- */

static void restart(struct lsm6ds3 *s) {
  s->samples = 1; /* the first one comes after one period */
  s->since_ns = s->counted_ns;
  s->next_ns = sample_time(s, 1);
}

static void clear_fifo(struct lsm6ds3 *s) {
  s->fifo_first = s->fifo_count = s->undecimated = 0;
  s->overrun = false;
}

static void reset_registers(struct lsm6ds3 *s) {
  s->threshold_low = s->threshold_high = s->decimation = s->fifo_control = 0;
  s->accelerometer = s->power_mode = 0;
  s->common = IF_INC;
  s->axes = ALL_AXES;
  clear_fifo(s);
  restart(s);
}

static bool rate_written(void *owner, uint32_t value) {
  restart(owner);
  return value >> 4 <= FASTEST;
}

/* Modes with a trigger are not modelled. */
static bool fifo_written(void *owner, uint32_t value) {
  const unsigned mode = value & FIFO_MODE;
  clear_fifo(owner);
  return mode == 0 || mode == STOP_WHEN_FULL || mode == CONTINUOUS;
}

static bool common_written(void *owner, uint32_t value) {
  if (value & SW_RESET)
    reset_registers(owner);
  return !(value & ~(uint32_t)(BDU | IF_INC | SW_RESET));
}

static bool power_mode_written(void *owner, uint32_t value) {
  (void)owner;
  return !(value & ~(uint32_t)XL_HM_MODE);
}

static bool axes_written(void *owner, uint32_t value) {
  (void)owner;
  return value == ALL_AXES;
}

static uint32_t status(void *owner) {
  const struct lsm6ds3 *s = owner;
  return s->fresh;
}

static uint32_t unread_low(void *owner) {
  const struct lsm6ds3 *s = owner;
  return s->fifo_count & 0xff;
}

static uint32_t unread_high(void *owner) {
  const struct lsm6ds3 *s = owner;
  const uint32_t threshold = s->threshold_low | (uint32_t)s->threshold_high
                                                    << 8;
  return (s->fifo_count >> 8 & 15) | (s->fifo_count ? 0 : EMPTY) |
         (s->fifo_count + 3 > LSM6DS3_WORDS ? FULL : 0) |
         (s->overrun ? OVER_RUN : 0) |
         (threshold && s->fifo_count >= threshold ? FTH : 0);
}

/* Whole sets come and go, so the words that are left say which comes next. */
static uint32_t pattern(void *owner) {
  const struct lsm6ds3 *s = owner;
  return (3 - s->fifo_count % 3) % 3;
}

static uint32_t word_low(void *owner) {
  struct lsm6ds3 *s = owner;
  if (!s->fifo_count)
    machine_stop(s->scene->m, RUN_FAULT,
                 "LSM6DS3: FIFO_DATA_OUT is read while the FIFO is empty");
  return s->fifo[s->fifo_first % LSM6DS3_WORDS] & 0xff;
}

static uint32_t word_high(void *owner) {
  struct lsm6ds3 *s = owner;
  const uint16_t word = s->fifo[s->fifo_first % LSM6DS3_WORDS];
  if (s->fifo_count) {
    s->fifo_first++;
    s->fifo_count--;
    s->overrun &= (s->fifo_control & FIFO_MODE) == STOP_WHEN_FULL;
  }
  return word >> 8;
}

#define OF_SENSOR(member) FIELD(struct lsm6ds3, member)
static const struct reg registers[] = {
    {FIFO_CTRL1, 1, PLAIN, OF_SENSOR(threshold_low)},
    {FIFO_CTRL2, 1, PLAIN, OF_SENSOR(threshold_high), .most = 15},
    {FIFO_CTRL3, 1, PLAIN, OF_SENSOR(decimation), .most = 7},
    {FIFO_CTRL4, 1, ZERO_ONLY, .constant = 0},
    {FIFO_CTRL5, 1, PLAIN, OF_SENSOR(fifo_control), .set = fifo_written},
    {INT1_CTRL, 1, ZERO_ONLY, .constant = 0},
    {INT2_CTRL, 1, ZERO_ONLY, .constant = 0},
    {WHO_AM_I, 1, .constant = 0x69},
    {CTRL1_XL, 1, PLAIN, OF_SENSOR(accelerometer), .set = rate_written},
    {CTRL2_G, 1, ZERO_ONLY, .constant = 0},
    {CTRL3_C, 1, PLAIN, OF_SENSOR(common), .set = common_written},
    {CTRL4_C, 1, ZERO_ONLY, .constant = 0},
    {CTRL5_C, 1, ZERO_ONLY, .constant = 0},
    {CTRL6_C, 1, PLAIN, OF_SENSOR(power_mode), .set = power_mode_written},
    {CTRL7_G, 1, ZERO_ONLY, .constant = 0},
    {CTRL8_XL, 1, ZERO_ONLY, .constant = 0},
    {CTRL9_XL, 1, PLAIN, OF_SENSOR(axes), .set = axes_written},
    {STATUS_REG, 1, .get = status},
    {OUTX_L_XL, 1, OF_SENSOR(out[0])},
    {OUTX_H_XL, 1, OF_SENSOR(out[1])},
    {OUTY_L_XL, 1, OF_SENSOR(out[2])},
    {OUTY_H_XL, 1, OF_SENSOR(out[3])},
    {OUTZ_L_XL, 1, OF_SENSOR(out[4])},
    {OUTZ_H_XL, 1, OF_SENSOR(out[5])},
    {FIFO_STATUS1, 1, .get = unread_low},
    {FIFO_STATUS2, 1, .get = unread_high},
    {FIFO_STATUS3, 1, .get = pattern},
    {FIFO_STATUS4, 1, .constant = 0},
    {FIFO_DATA_OUT_L, 1, .get = word_low},
    {FIFO_DATA_OUT_H, 1, .get = word_high},
    {0}};

void lsm6ds3_power_on(struct lsm6ds3 *s, struct scene *scene, uint64_t now_ns) {
  *s = (struct lsm6ds3){.scene = scene, .counted_ns = now_ns};
  reset_registers(s);
}

/* -- the bus: section 6.1 -- */

bool lsm6ds3_start(struct lsm6ds3 *s, uint8_t address, bool read) {
  s->addressed = read;
  return address == LSM6DS3_ADDRESS;
}

/* The address of the next register. Those of the FIFO's output alternate. */
static void step(struct lsm6ds3 *s) {
  if (s->address == FIFO_DATA_OUT_H)
    s->address = FIFO_DATA_OUT_L;
  else if (s->common & IF_INC)
    s->address++;
}

bool lsm6ds3_write(struct lsm6ds3 *s, uint8_t byte) {
  if (!s->addressed) {
    s->address = byte;
    s->addressed = true;
    return true;
  }
  advance(s, scene_ns(s->scene));
  if (!register_write(registers, s, s->address, 1, byte))
    machine_stop(s->scene->m, RUN_FAULT,
                 "LSM6DS3: the model does not cover the value 0x%02x of "
                 "register 0x%02x",
                 byte, s->address);
  step(s);
  return true;
}

uint8_t lsm6ds3_read(struct lsm6ds3 *s) {
  const unsigned place = s->address - (unsigned)OUTX_L_XL;
  uint32_t value = 0;
  advance(s, scene_ns(s->scene));
  if (!register_read(registers, s, s->address, 1, &value))
    machine_stop(s->scene->m, RUN_FAULT,
                 "LSM6DS3: the model does not cover register 0x%02x",
                 s->address);
  if (place < sizeof s->out) {
    s->fresh &= place % 2 == 0; /* the high byte ends the reading of an axis */
    s->half_read &= (uint8_t)~(1u << place / 2);
    s->half_read |= (uint8_t)((place % 2 == 0) << place / 2);
  }
  step(s);
  return (uint8_t)value;
}
