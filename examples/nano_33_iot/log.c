/* log.c - see log.h. */
#include "log.h"

#include <string.h>

#include "chip.h"

void print(const char *text) {
  chip_uart_send((const uint8_t *)text, (uint32_t)strlen(text));
}

void print_number(uint32_t value) {
  char text[11];
  char *at = text + sizeof text - 1;
  *at = 0;
  do {
    *--at = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  print(at);
}

void print_bytes(const void *data, uint32_t size) {
  const uint8_t *bytes = data;
  for (uint32_t i = 0; i < size; i++) {
    const char text[3] = {"0123456789abcdef"[bytes[i] >> 4],
                          "0123456789abcdef"[bytes[i] & 15], 0};
    print(text);
  }
}

void log_error(int error) {
  print(poet_learner_text(error));
  print("\n");
  for (;;) {
  }
}

int log_state(const struct poet_learner *learner) {
  struct poet_learner_state state;
  const int error = poet_learner_state(learner, &state);
  if (error < 0) {
    return error;
  }
  print("step ");
  print_number(state.step);
  print(", samples ");
  print_number(state.samples);
  print("\n");
  return 0;
}

int log_teach(struct poet_learner *learner, const void *sample, uint32_t size,
              uint32_t label) {
  struct poet_learner_state state;
  int result = poet_learner_state(learner, &state);
  if (result < 0) {
    return result;
  }
  print("teach ");
  print_number(label);
  print(" ");
  print_number(state.next_step);
  print(" ");
  print_bytes(sample, size);
  print("\n");
  result = poet_learner_teach(learner, sample, label);
  if (result >= 0) {
    print(result == POET_BUSY ? "busy\n" : "taught\n");
  }
  return result;
}

int log_saved(struct poet_learner *learner, uint32_t step, uint32_t tensors,
              const uint32_t tensor_bytes[]) {
  uint8_t bytes[64];
  print("saved ");
  print_number(step);
  print(" ");
  for (uint32_t tensor = 0; tensor < tensors; tensor++) {
    const uint32_t end = tensor_bytes[tensor];
    for (uint32_t at = 0; at < end; at += sizeof bytes) {
      const uint32_t size = end - at < sizeof bytes ? end - at : sizeof bytes;
      const int error = poet_learner_read(learner, tensor, at, bytes, size);
      if (error) {
        return error;
      }
      print_bytes(bytes, size);
    }
  }
  print("\n");
  return 0;
}
