/* One use, or misuse, of the I2C host and the LSM6DS3, by number. */
#include "accelerometer.h"
#include "samd21.h"

enum { STATUS = 0x1a, ADDR = 0x24, MB = 1, BUTTON_PIN = 10, CTRL6_C = 0x15 };
enum { TWO_G_104_HZ = 4 << 4, FIFO_104_HZ = 4 << 3, CONTINUOUS = 6 };

static void set(uint8_t reg, uint8_t value) {
  if (!sensor_write(SENSOR_ADDRESS, reg, value))
    finish(3);
}

static uint8_t get(uint8_t reg) {
  uint8_t value = 0;
  if (!sensor_read(SENSOR_ADDRESS, reg, &value, 1))
    finish(4);
  return value;
}

static void wait_ms(uint32_t count) {
  for (; count; count--) {
    SYST_RVR = SYST_CVR = 48000 - 1;
    SYST_CSR = 5;
    while (!(SYST_CSR & 1 << 16))
      ;
  }
}

static uint32_t fifo_words(void) {
  return get(SENSOR_FIFO_STATUS1) | (get(SENSOR_FIFO_STATUS1 + 1) & 15u) << 8;
}

static void fifo_start(unsigned rate, unsigned mode) {
  set(SENSOR_FIFO_CTRL5, 0);
  set(SENSOR_CTRL1_XL, 0);
  set(SENSOR_FIFO_CTRL3, 1);
  set(SENSOR_FIFO_CTRL5, (uint8_t)(rate << 3 | mode));
  set(SENSOR_CTRL1_XL, (uint8_t)(rate << 4));
}

static void print_sample(uint8_t from) {
  uint8_t data[6];
  sensor_read(SENSOR_ADDRESS, from, data, 6);
  for (int axis = 0; axis < 3; axis++)
    print_hex(data[2 * axis] | (uint32_t)data[2 * axis + 1] << 8);
}

static void operation(volatile uint32_t *reg, uint32_t value) {
  *reg = value;
  while (SERCOM(4, SYNCBUSY))
    ;
}

static void until_byte(void) {
  while (!(SERCOM8(4, INTFLAG) & 3))
    ;
}

static volatile uint32_t interrupts;

void irq13_handler(void) { /* SERCOM4 */
  static const uint8_t bytes[] = {SENSOR_CTRL1_XL, TWO_G_104_HZ};
  if (interrupts < 2)
    SERCOM(4, DATA) = bytes[interrupts];
  else
    SERCOM(4, CTRLB) = 3 << 16; /* stop */
  interrupts++;
}

int main(void) {
  clock_48mhz();
  sensor_bus_start();
#if CASE == 1 /* identity, values after a reset, a wrong address, a new reset  \
               */
  uint8_t data[2];
  print_hex(get(SENSOR_WHO_AM_I));
  print_hex(sensor_read(0x6b, SENSOR_WHO_AM_I, data, 1));
  print_hex(sensor_write(0x6b, SENSOR_CTRL1_XL, 0x40));
  set(SENSOR_CTRL1_XL, TWO_G_104_HZ);
  print_hex(get(SENSOR_CTRL1_XL));
  set(SENSOR_CTRL3_C, 5);
  print_hex(get(SENSOR_CTRL1_XL));
  print_hex(get(SENSOR_CTRL3_C));
  set(SENSOR_CTRL3_C, 0); /* the address stays */
  sensor_read(SENSOR_ADDRESS, SENSOR_WHO_AM_I, data, 2);
  print_hex(data[1]);
#elif CASE == 2 /* each full scale */
  for (uint8_t scale = 0; scale < 4; scale++) {
    set(SENSOR_CTRL1_XL, (uint8_t)(TWO_G_104_HZ | scale << 2));
    while (!(get(SENSOR_STATUS_REG) & 1))
      ;
    print_sample(SENSOR_OUTX_L_XL);
    print_hex(get(SENSOR_STATUS_REG));
  }
#elif CASE == 3 /* each data rate: words of the FIFO after 100 ms */
  for (unsigned rate = 1; rate <= 10; rate++) {
    fifo_start(rate, CONTINUOUS);
    wait_ms(100);
    print_hex(fifo_words());
  }
#elif CASE == 4 /* a full FIFO, in both modes; then a threshold */
  for (unsigned mode = 1; mode <= CONTINUOUS; mode += CONTINUOUS - 1) {
    fifo_start(10, mode);
    wait_ms(300);
    set(SENSOR_CTRL1_XL, 0);
    print_hex(get(SENSOR_FIFO_STATUS1 + 1));
    print_hex(fifo_words());
    print_sample(SENSOR_FIFO_DATA_OUT_L);
    print_hex(get(SENSOR_FIFO_STATUS1 + 1));
  }
  uint8_t word[2];
  sensor_read(SENSOR_ADDRESS, SENSOR_FIFO_DATA_OUT_L, word, 2);
  print_hex(get(SENSOR_FIFO_STATUS1 + 2)); /* the pattern */
  set(SENSOR_FIFO_CTRL1, 6);
  fifo_start(4, CONTINUOUS);
  print_hex(get(SENSOR_FIFO_STATUS1 + 1));
  wait_ms(21);
  print_hex(get(SENSOR_FIFO_STATUS1 + 1));
  set(SENSOR_FIFO_CTRL3, 2); /* every second sample */
  set(SENSOR_FIFO_CTRL5, FIFO_104_HZ | CONTINUOUS);
  wait_ms(41);
  print_hex(fifo_words());
#elif CASE == 5 /* a sample that is read in two halves, with and without BDU   \
                 */
  for (uint8_t bdu = 0; bdu <= 0x40; bdu += 0x40) {
    set(SENSOR_CTRL3_C, 4 | bdu);
    set(SENSOR_CTRL1_XL, TWO_G_104_HZ);
    wait_ms(10);
    const uint32_t low = get(SENSOR_OUTX_L_XL);
    wait_ms(10);
    print_hex(low | (uint32_t)get(SENSOR_OUTX_L_XL + 1) << 8);
  }
#elif CASE == 6 /* 100 ms in each power mode */
  const uint8_t rates[] = {0, 4, 4, 3, 8}, modes[] = {0, 0, 0x10, 0x10, 0x10};
  for (unsigned i = 0; i < sizeof rates; i++) {
    set(CTRL6_C, modes[i]);
    set(SENSOR_CTRL1_XL, (uint8_t)(rates[i] << 4));
    mark();
    wait_ms(100);
    mark();
  }
#elif CASE == 7 /* a bus of unknown state */
  SERCOM(4, CTRLA) &= ~2u;
  SERCOM(4, CTRLA) |= 2;
  while (SERCOM(4, SYNCBUSY))
    ;
  operation(&SERCOM(4, ADDR), SENSOR_ADDRESS << 1);
  print_hex(SERCOM16(4, STATUS));
  print_hex(SERCOM8(4, INTFLAG));
#elif CASE == 8 /* smart mode: a read of DATA acknowledges */
  uint32_t bytes = 0;
  SERCOM(4, CTRLA) &= ~2u;
  operation(&SERCOM(4, CTRLB), 1 << 8);
  operation(&SERCOM(4, CTRLA), 5 << 2 | 2);
  SERCOM16(4, STATUS) = 0x10; /* idle */
  while (SERCOM(4, SYNCBUSY))
    ;
  operation(&SERCOM(4, ADDR), SENSOR_ADDRESS << 1);
  until_byte();
  operation(&SERCOM(4, DATA), SENSOR_WHO_AM_I);
  until_byte();
  operation(&SERCOM(4, ADDR), SENSOR_ADDRESS << 1 | 1);
  for (int i = 0; i < 4; i++) {
    until_byte();
    if (i == 3)
      operation(&SERCOM(4, CTRLB), 7 << 16 | 1 << 8);
    bytes = bytes << 8 | SERCOM8(4, DATA);
    while (SERCOM(4, SYNCBUSY))
      ;
  }
  print_hex(bytes);
#elif CASE == 9 /* a write by interrupts, while the core sleeps */
  SERCOM8(4, INTENSET) = MB;
  NVIC_ISER = 1u << 13;
  SERCOM(4, ADDR) = SENSOR_ADDRESS << 1;
  wait_for(&interrupts, 3);
  NVIC_ICER = 1u << 13;
  print_hex(interrupts);
  print_hex(get(SENSOR_CTRL1_XL));
#elif CASE == 20
  SERCOM(4, CTRLA) &= ~2u;
  SERCOM16(4, BAUD) = 10;
  SERCOM(4, CTRLA) |= 2;
#elif CASE == 21
  SERCOM(4, CTRLA) &= ~2u;
  PORT8(0xc0 + 9) = 0;
  SERCOM(4, CTRLA) |= 2;
#elif CASE == 22
  set(SENSOR_CTRL2_G, 0x40);
#elif CASE == 23
  get(SENSOR_FIFO_DATA_OUT_L);
#elif CASE == 24
  operation(&SERCOM(4, DATA), 1);
#elif CASE == 25
  get(SENSOR_WHO_AM_I);
  operation(&SERCOM(4, ADDR), SENSOR_ADDRESS << 1 | 1);
  until_byte();
  operation(&SERCOM(4, CTRLB), 3 << 16);
#elif CASE == 26
  SERCOM(4, ADDR) = SENSOR_ADDRESS << 1;
  SERCOM(4, DATA) = 1;
#elif CASE == 27
  fifo_start(4, CONTINUOUS);
  set(SENSOR_CTRL1_XL, 5 << 4);
  wait_ms(10);
  get(SENSOR_WHO_AM_I);
#elif CASE == 28
  PORT8(0xc0 + BUTTON_PIN) = 2;
  print_hex(PORT(0xa0));
#elif CASE == 29
  operation(&SERCOM(4, CTRLB), 3 << 16);
#elif CASE == 30
  set(SENSOR_FIFO_CTRL5, 3);
#elif CASE == 31
  get(0x40);
#endif
  return 0;
}
