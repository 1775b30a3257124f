/* Prints the results of a learner's functions, called from the main loop and
   then from an interrupt. */
#include "poet/learner.h"
#include "test.h"

static struct poet_learner learner;
static struct poet_learner_state state;
static uint64_t memory[4];
static struct poet_device device;

static void note(int result) {
  print(result == POET_ERROR_closed      ? "closed "
        : result == POET_ERROR_package   ? "package "
        : result == POET_ERROR_reentered ? "reentered "
                                         : "wrong ");
}

static void call_all(void) {
  float outputs[1];
  note(poet_learner_open(&learner, NULL, &device, memory, sizeof memory));
  note(poet_learner_infer(&learner, memory, outputs));
  note(poet_learner_teach(&learner, memory, 0));
  note(poet_learner_learn(&learner, 1));
  note(poet_learner_poll(&learner, 0));
  note(poet_learner_save(&learner));
  note(poet_learner_state(&learner, &state));
  note(poet_learner_read(&learner, 0, 0, memory, 4));
  note(poet_learner_write(&learner, 0, 0, memory, 4));
  note(poet_learner_adopt(&learner));
  note(poet_learner_forget(&learner, POET_FORGET_SAMPLES));
}

void svc_handler(void) {
  call_all();
}

int main(void) {
  call_all();
  __asm volatile("svc 0");
  return 0;
}
