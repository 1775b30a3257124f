/* Uses, and misuses, of the SAM D21's USB, by number; the cable is in, and the
   host sends its first SETUP as soon as endpoint 0 takes it. */
#include "samd21.h"

#define PM_APBBMASK REG32(0x4000041c)
#define USB8(offset) REG8(0x41005000 + (offset))
#define USB16(offset) REG16(0x41005000 + (offset))
#define USB32(offset) REG32(0x41005000 + (offset))
#define EP(n, offset) USB8(0x100 + 0x20 * (n) + (offset))
#define CALIBRATION REG32(0x00806024)

enum {
  EPCFG,
  STATUS_CLEAR = 4,
  STATUS_SET,
  STATUS,
  FLAGS,
  FLAGS_OFF,
  FLAGS_ON
};
enum { TAKE, SEND };

static uint32_t banks[8][2][4];
static uint32_t buffer[16];

static void describe(unsigned n, unsigned bank, uint32_t at, uint32_t packet) {
  banks[n][bank][0] = at;
  banks[n][bank][1] = packet;
}

static void pads(void) {
  pin_function(24, 6);
  pin_function(25, 6);
  USB16(0x28) =
      (uint16_t)((CALIBRATION >> 18 & 31) | (CALIBRATION >> 13 & 31) << 6 |
                 (CALIBRATION >> 23 & 7) << 12);
}

static void start(void) {
  clock_channel(6, 0);
  pads();
  USB32(0x24) = (uint32_t)(uintptr_t)banks;
  describe(0, TAKE, (uint32_t)(uintptr_t)buffer, 0);
  USB8(0) = 2;
  while (USB8(2))
    ;
}

/* Attach, and wait for the end of the host's reset. */
static void meet(void) {
  start();
  USB16(8) = 0;
  while (!(USB16(0x1c) & 8))
    ;
  EP(0, EPCFG) = 0x11;
}

static void await_setup(void) {
  while (!(EP(0, FLAGS) & 0x10))
    ;
}

int main(void) {
  const uint32_t at = (uint32_t)(uintptr_t)buffer;
  clock_48mhz();
#if CASE == 1 /* a SETUP, in a buffer of its own size and in a larger one */
  meet();
  describe(0, TAKE, at, 0);
  await_setup();
  print_hex(buffer[0]);
  print_hex(buffer[1]);
  print_hex(buffer[2]);
  print_hex(banks[0][TAKE][1]);
  print_hex(EP(0, STATUS)); /* both toggles, and room for nothing more */
  EP(0, STATUS_SET) = 0x30; /* stall it: the host comes again */
  EP(0, FLAGS) = 0x10;
  describe(0, TAKE, at, 3u << 28);
  await_setup();
  print_hex(buffer[2]);
  print_hex(EP(0, STATUS)); /* the stall has gone */
#elif CASE == 2             /* what a reset of the bus clears */
  start();
  USB16(8) = 0;
  USB8(0xa) = 0x85;
  EP(0, EPCFG) = 0x11;
  EP(1, EPCFG) = 0x40;
  EP(1, FLAGS_ON) = 2;
  EP(1, STATUS_SET) = 0x20;
  while (!(USB16(0x1c) & 8))
    ;
  print_hex(USB8(0xa));
  print_hex(EP(0, EPCFG));
  print_hex((uint32_t)EP(1, EPCFG) | EP(1, FLAGS_ON) | EP(1, STATUS));
#elif CASE == 3 /* attached, the bus is idle until a host resets it */
  start();
  USB16(8) = 0;
  while (!(USB16(0x1c) & 1))
    ;
  print_hex(USB8(0xd));
  while (!(USB16(0x1c) & 8))
    ;
  print_hex(USB16(0x1c));
  print_hex(USB8(0xd));
#elif CASE == 4 /* a packet to the host, and no more after it */
  meet();
  await_setup();
  describe(0, SEND, at, 3u << 28 | 18);
  for (int i = 0; i < 5; i++)
    buffer[i] = 0x01000212; /* a descriptor of 18 bytes */
  EP(0, FLAGS) = 0x10;
  barrier();
  EP(0, STATUS_SET) = 0x80;
  while (!(EP(0, FLAGS) & 2))
    ;
  print_hex(EP(0, STATUS)); /* DATA0 is next; nothing waits */
#elif CASE == 20
  pads();
  USB32(0x24) = (uint32_t)(uintptr_t)banks;
  USB8(0) = 2;
#elif CASE == 21
  clock_channel(6, 0);
  USB32(0x24) = (uint32_t)(uintptr_t)banks;
  USB8(0) = 2;
#elif CASE == 22
  clock_channel(6, 0);
  pads();
  USB16(0x28) = 0;
  USB32(0x24) = (uint32_t)(uintptr_t)banks;
  USB8(0) = 2;
#elif CASE == 23
  clock_channel(6, 0);
  pads();
  USB8(0) = 2;
#elif CASE == 24
  start();
  EP(1, EPCFG) = 0x20; /* isochronous */
#elif CASE == 25
  meet();
  describe(0, SEND, at, 3u << 28 | 18);
  barrier();
  EP(0, STATUS_SET) = 0x80;
  EP(0, STATUS_SET) = 0x80;
#elif CASE == 26
  meet();
  describe(0, TAKE, 0x20008000 - 4, 0);
  await_setup();
#elif CASE == 27
  meet();
  describe(0, TAKE, at, 3u << 28 | 128 << 14);
  await_setup();
#elif CASE == 28
  meet();
  describe(0, TAKE, at + 2, 0);
  await_setup();
#elif CASE == 29
  start();
  USB8(0) = 0;
  USB8(0) = 0x82;
#elif CASE == 30
  PM_APBBMASK &= ~(1u << 5);
  USB8(0) = 2;
#elif CASE == 31
  clock_channel(6, 3); /* 16 MHz */
  pads();
  USB32(0x24) = (uint32_t)(uintptr_t)banks;
  USB8(0) = 2;
#elif CASE == 32
  start();
  USB16(8) = 1 << 2; /* low speed */
#elif CASE == 33
  meet();
  USB32(0x24) = 0x30000000;
  await_setup();
#endif
  return 0;
}
