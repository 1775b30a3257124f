// A core whose serial port is standard input and output. Pin A0 is high for
// six readings: the first ones, the second ones or later ones, as the last digit says.
#include <Arduino.h>
#include <stdio.h>
#include <stdlib.h>

SerialPort Serial;
static unsigned long now_us, readings;
static int next_key = -2, kind;

unsigned long micros() { return now_us++; }
void delay(unsigned long ms) {
  now_us += 1000 * ms;
  if (now_us > 60 * 1000000ul && ms >= 1000) {
    exit(0);
  }
}
int analogRead(uint8_t) { return readings++ / 6 == (unsigned long)kind ? 100 : 10; }
void SerialPort::begin(unsigned long) {}
int SerialPort::available() {
  if (next_key == -2) {
    next_key = getchar();
  }
  if (next_key == EOF) {
    exit(0);
  }
  return 1;
}
int SerialPort::read() {
  const int key = next_key;
  next_key = -2;
  kind = key >= '0' && key <= '9' ? key - '0' : kind;
  readings = 0;
  return key;
}
size_t SerialPort::print(const char *text) { return (size_t)printf("%s", text); }
size_t SerialPort::println(double value) { return (size_t)printf("%.2f\n", value); }
size_t SerialPort::println(const char *text) { return (size_t)printf("%s\n", text); }

int main() {
  setup();
  for (;;) {
    loop();
  }
}
