/* scene.h - what happens around a board: the motion of its sensor, presses of
   its button, and changes of its LED.

   A scene has the time since power-on, and outlives a reset of the chip. */
#pragma once

#include "api.h"
#include "lsm6ds3.h"

enum { LED_CHANGES = 4096 };

struct scene {
  struct machine *m;   /* the chip that runs now */
  uint64_t earlier_ns; /* time of the chip before its latest reset */
  struct motion *motion;
  uint32_t motion_count;
  uint32_t row; /* of `motion`, at the sensor's latest sample */
  struct press *presses;
  uint32_t press_count;
  bool led;
  struct led_change changes[LED_CHANGES];
  uint32_t change_count;
  struct lsm6ds3 sensor;
};

uint64_t scene_ns(const struct scene *s);
/* Return the acceleration of the three axes in g. Times never decrease. */
const double *scene_motion(struct scene *s, uint64_t at_ns);
bool scene_pressed(const struct scene *s);
void scene_led(struct scene *s, bool on);
