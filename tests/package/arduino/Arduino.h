// What the sketches of packages use of an Arduino core.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { A0 = 14 };
unsigned long micros();
void delay(unsigned long ms);
int analogRead(uint8_t pin);
void setup();
void loop();

struct SerialPort {
  void begin(unsigned long baud);
  int available();
  int read();
  size_t print(const char *text);
  size_t println(const char *text);
  size_t println(double value);
};
extern SerialPort Serial;
