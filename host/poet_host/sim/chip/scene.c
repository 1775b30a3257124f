/* scene.c - see scene.h. State: struct scene, which copies what it was made
   of. */
#include "scene.h"

#include <stdlib.h>
#include <string.h>

#include "machine.h"

static void *copy(const void *from, size_t size_bytes) {
  void *to = malloc(size_bytes + 1);
  memcpy(to, from, size_bytes);
  return to;
}

struct scene *scene_new(const struct motion *motion, uint32_t motion_count,
                        const struct press *presses, uint32_t press_count) {
  struct scene *s = calloc(1, sizeof *s);
  s->motion = copy(motion, motion_count * sizeof *motion);
  s->motion_count = motion_count;
  s->presses = copy(presses, press_count * sizeof *presses);
  s->press_count = press_count;
  lsm6ds3_power_on(&s->sensor, s, 0);
  return s;
}

void scene_free(struct scene *s) {
  free(s->motion);
  free(s->presses);
  free(s);
}

void machine_set_scene(struct machine *m, struct scene *s) {
  if (s->m)
    s->earlier_ns = scene_ns(s);
  s->m = m;
  m->scene = s;
  scene_led(s, false);
}

uint64_t scene_ns(const struct scene *s) {
  return s->earlier_ns + machine_nanoseconds(s->m);
}

const double *scene_motion(struct scene *s, uint64_t at_ns) {
  while (s->row + 1 < s->motion_count && s->motion[s->row + 1].at_ns <= at_ns)
    s->row++;
  return s->motion[s->row].g;
}

bool scene_pressed(const struct scene *s) {
  const uint64_t now = scene_ns(s);
  for (uint32_t i = 0; i < s->press_count; i++)
    if (s->presses[i].from_ns <= now && now < s->presses[i].to_ns)
      return true;
  return false;
}

void scene_led(struct scene *s, bool on) {
  if (on == s->led)
    return;
  s->led = on;
  if (s->change_count < LED_CHANGES)
    s->changes[s->change_count++] = (struct led_change){scene_ns(s), on};
}

uint32_t scene_take_led(struct scene *s, struct led_change *changes,
                        uint32_t most) {
  const uint32_t taken = s->change_count < most ? s->change_count : most;
  memcpy(changes, s->changes, taken * sizeof *changes);
  s->change_count -= taken;
  memmove(s->changes, s->changes + taken, s->change_count * sizeof *changes);
  return taken;
}
