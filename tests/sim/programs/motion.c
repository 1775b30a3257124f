/* A program for a Nano 33 IoT: it sends the accelerometer's samples to the
   UART, six bytes each, and lights the LED while the button is pressed. */
#include "accelerometer.h"
#include "samd21.h"

enum { BUTTON_PIN = 10 /* PB10 */, LED_PIN = 17 /* PA17 */ };

/* The board has no crystal: the DFLL runs by its calibration (17.6.7). */
static void clock_without_crystal(void) {
  NVM_CTRLB = 1 << 1;
  SYSCTRL_DFLLCTRL = 1 << 1;
  dfll_sync();
  REG32(0x40000828) = REG32(0x00806024) >> 26 << 10 | 512;
  dfll_sync();
  GCLK_GENDIV = 0;
  gclk_sync();
  GCLK_GENCTRL = 0 | 7 << 8 | 1 << 16;
  gclk_sync();
}

static void send(const uint8_t *data, unsigned size) {
  for (unsigned i = 0; i < size; i++) {
    while (!(SERCOM8(5, INTFLAG) & 1))
      ;
    SERCOM16(5, DATA) = data[i];
  }
}

int main(void) {
  static int16_t samples[16][3];
  clock_without_crystal();
  uart_start();
  PORT(0x08) = 1u << LED_PIN;                 /* an output */
  PORT(0x98) = 1u << BUTTON_PIN;              /* up ... */
  PORT8(0xc0 + BUTTON_PIN) = 1 << 2 | 1 << 1; /* ... pull, and input buffer */
  if (!accelerometer_start(SENSOR_104_HZ | SENSOR_4_G))
    return 1;
  for (;;) {
    const int count = accelerometer_read(samples, 16);
    if (count < 0)
      return 2;
    send((const uint8_t *)samples, (unsigned)count * sizeof samples[0]);
    PORT(PORT(0xa0) >> BUTTON_PIN & 1 ? 0x14 : 0x18) = 1u << LED_PIN;
  }
}
