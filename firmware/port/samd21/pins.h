/* pins.h - what differs between the boards with this chip: pins, and the 32 kHz
 * crystal. Facts of Arduino's variant files. A board that is not listed is
 * wired as the MKR1000. */
#ifndef POET_PINS_H
#define POET_PINS_H

#define BOARD_IS_nano_33_iot 1
#define BOARD_IS(board) BOARD_IS_NAMED(board)
#define BOARD_IS_NAMED(board) BOARD_IS_##board

#if BOARD_IS(POET_BOARD) == 1 /* a name such as mine-2 is a difference */
/* Nano 33 IoT: it has no card slot, and the usual SCK, D13, is the LED. So a
 * card module is wired to D11 PA16 MOSI (pad 0), D12 PA19 SCK (pad 3), D8 PA18
 * MISO (pad 2), and D10 PA21 its select. */
enum {
  HAS_CRYSTAL = 0,
  SPI_OUTPUT = 3,
  SPI_INPUT = 2,
  MOSI_PIN = 16,
  SCK_PIN = 19,
  MISO_PIN = 18,
  SELECT_GROUP = 0,
  SELECT_PIN = 21,
  LED_PIN = 17, /* PA17, high: on */
};
#define OTHER_SELECTS 0u
/* The radio (NINA-W102) is held in reset by PA08. Its GPIO0, PA27, is high, as
 * Arduino's core drives it. */
#define HIGH_PINS (1u << 27)
#define LOW_PINS (1u << 8)

#else
/* MKR1000: SERCOM1 with PA16 MOSI (pad 0), PA17 SCK (pad 1), PA19 MISO (pad 3).
 * The flash of a MEM shield is on the card's bus: its select is PB11. */
enum {
  HAS_CRYSTAL = 1,
  SPI_OUTPUT = 0,
  SPI_INPUT = 3,
  MOSI_PIN = 16,
  SCK_PIN = 17,
  MISO_PIN = 19,
  SELECT_GROUP = 1,
  SELECT_PIN = 10, /* PB10 */
  LED_PIN = 20,    /* PA20, high: on */
};
#define OTHER_SELECTS (1u << 11)
/* The WiFi chip has a bus of its own, and would draw current while its pins
 * float: select PA14; reset PA27 and enable PA28, low: off. */
#define HIGH_PINS (1u << 14)
#define LOW_PINS (1u << 27 | 1u << 28)
#endif

#endif
