/* Uses, and misuses, of the nRF52840's USBD, by number; the cable is in. */
#include "test.h"

#define POWER(offset) REG32(0x40000000 + (offset))
#define USBD(offset) REG32(0x40027000 + (offset))
#define HIDDEN(offset) REG32(0x4006e000 + (offset))
#define STARTEPIN(n) USBD(0x004 + 4 * (n))
#define STARTEPOUT(n) USBD(0x028 + 4 * (n))
#define ENDEPIN(n) USBD(0x108 + 4 * (n))
#define EVENTCAUSE USBD(0x400)
#define ENABLE USBD(0x500)
#define USBPULLUP USBD(0x504)
#define EPINEN USBD(0x510)
#define EPIN(n) (&USBD(0x600 + 0x14 * (n)))
#define MOVING USBD(0xc1c)
#define REGSTATUS POWER(0x438)

static uint8_t packet[64];

static void crystal(void) {
  POWER(0x000) = 1;
  while (!POWER(0x100))
    ;
}

static void hidden(uint32_t offset, uint32_t value) {
  HIDDEN(0xc00) = 0x9375;
  HIDDEN(offset) = value;
  HIDDEN(0xc00) = 0x9375;
}

static void enable(void) {
  hidden(0xd14, 3);
  hidden(0xc14, 0xc0);
  ENABLE = 1;
  while (!(EVENTCAUSE & 1 << 11))
    ;
  EVENTCAUSE = 1 << 11;
}

static void send(unsigned n, uint32_t from, uint32_t size) {
  EPIN(n)[0] = from;
  EPIN(n)[1] = size;
  STARTEPIN(n) = 1;
}

int main(void) {
  const uint32_t at = (uint32_t)(uintptr_t)packet;
#if CASE == 1 /* what comes when */
  print_hex(REGSTATUS);
  enable();
  print_hex(REGSTATUS | USBD(0x158) << 4);
  while (!POWER(0x124))
    ;
  print_hex(REGSTATUS);
  ENABLE = 0;
  print_hex(REGSTATUS);
#elif CASE == 2 /* EasyDMA is quick, and says what it did */
  enable();
  MOVING = 0x82;
  send(2, at, 64);
  while (!ENDEPIN(2))
    ;
  print_hex(EPIN(2)[2]);
  print_hex(USBD(0x468));
#elif CASE == 20
  hidden(0xc14, 0xc0);
  ENABLE = 1;
#elif CASE == 21
  hidden(0xd14, 3);
  ENABLE = 1;
#elif CASE == 22
  HIDDEN(0xd14) = 3;
#elif CASE == 23
  hidden(0xd14, 3);
  hidden(0xc14, 0xc0);
  ENABLE = 1;
  EPINEN = 3;
#elif CASE == 24
  enable();
  send(0, at, 1);
#elif CASE == 25
  enable();
  MOVING = 0x82;
  send(1, at, 64);
  send(2, at, 64);
#elif CASE == 26
  enable();
  MOVING = 0x82;
  send(1, at, 64);
  print_hex(USBD(0x4a8)); /* SIZE.EPOUT[2] */
#elif CASE == 27
  enable();
  crystal();
  USBPULLUP = 1;
#elif CASE == 28
  enable();
  while (!POWER(0x124))
    ;
  USBPULLUP = 1;
#elif CASE == 29
  enable();
  MOVING = 0x82;
  STARTEPOUT(2) = 1;
#elif CASE == 30
  enable();
  MOVING = 0x82;
  send(1, at, 65);
#elif CASE == 31
  enable();
  MOVING = 0x82;
  send(1, 0x00001000, 64);
#elif CASE == 32
  enable();
  USBD(0x024) = 1; /* STARTISOIN */
#elif CASE == 33 /* the host suspends the bus */
  enable();
  hidden(0xd14, 0);
  for (;;)
    ;
#endif
  return 0;
}
