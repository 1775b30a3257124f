/*
 * $name - learns from samples while it runs, and classifies.
 *
 * In the serial monitor (115200 baud), a digit teaches a sample of that class, and ? asks for the
 * class of a sample. Let read_value return what your sensor measures.
 */
#include <Arduino.h>
#include <$name.h>

static struct poet_learner learner;
static struct poet_device device;
static uint64_t memory[$memory / 8];
static $type sample[${name}_SAMPLE_VALUES];
static float outputs[${name}_OUTPUTS];
$storage
static uint32_t now_us(void *context) {
  (void)context;
  return micros();
}

static $type read_value(uint32_t number) {
  (void)number; /* of the value in the sample */
  delay(1);
  return ($type)($read);
}

static void read_sample() {
  for (uint32_t i = 0; i < ${name}_SAMPLE_VALUES; i++) {
    sample[i] = read_value(i);
  }
}

static bool failed(const char *what, int result) {
  if (result < 0) {
    Serial.print(what);
    Serial.print(": ");
    Serial.println(poet_learner_text(result));
  }
  return result < 0;
}

static void teach(uint32_t label) {
  int result;
  read_sample();
  while ((result = poet_learner_teach(&learner, sample, label)) == POET_BUSY) {
    if (failed("poll", poet_learner_poll(&learner, 5000))) {
      return;
    }
  }
  if (!failed("teach", result) && !failed("learn", poet_learner_learn(&learner, 20))) {
    Serial.print("taught ");
    Serial.println(${name}_class_names[label]);
  }
}

static void classify() {
  uint32_t best = 0;
  read_sample();
  if (failed("infer", poet_learner_infer(&learner, sample, outputs))) {
    return;
  }
  if (${name}_CLASSES == 1) { /* an autoencoder: the sample again, normalised */
    for (uint32_t i = 0; i < ${name}_OUTPUTS; i++) {
      Serial.println(outputs[i]);
    }
    return;
  }
  for (uint32_t i = 1; i < ${name}_CLASSES; i++) {
    best = outputs[i] > outputs[best] ? i : best;
  }
  Serial.print("found ");
  Serial.println(${name}_class_names[best]);
}

void setup() {
  Serial.begin(115200);
  device.micros = now_us;
$lend  const int result = poet_learner_open(&learner, &${name}_package, &device, memory, sizeof memory);
  while (failed("open", result)) { /* again and again: a USB port opens late */
    delay(1000);
  }
}

void loop() {
  failed("poll", poet_learner_poll(&learner, 5000));
  if (Serial.available() > 0) {
    const int key = Serial.read();
    if (key == '?') {
      classify();
    } else if (key >= '0' && key < '0' + (int)${name}_CLASSES) {
      teach((uint32_t)(key - '0'));
    }
  }
}
