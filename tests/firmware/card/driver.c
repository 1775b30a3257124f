/* The driver as one file, so that its state can be cleared as a reset does. */
#include "card.c"
#include "card_mount.c"
#include "lane.c"
#include "sd_bus.c"

void driver_reset(void);
void driver_reset(void) {
  memset(&card, 0, sizeof card);
  memset(&lane, 0, sizeof lane);
  memset(&sd_bus, 0, sizeof sd_bus);
}
