/* Calls of kernels that the test wrote into cases.h, a row of words each:
   step, overwritten input or -1, words of the output, number of inputs, words
   of each input, struct poet_op, the inputs. Prints the CRC-32 of each output.
 */
#include "cases.h"
#include "poet/kernel.h"
#include "test.h"

#include <string.h>

enum { EDGE = 0x7fc0dead, OP_WORDS = sizeof(struct poet_op) / 4 };

static uint32_t memory[3000]; /* tensors, with an edge after each */

static uint32_t crc32(const void *data, uint32_t size_bytes) {
  const uint8_t *bytes = data;
  uint32_t crc = 0xffffffff;
  for (uint32_t i = 0; i < size_bytes; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++)
      crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

/* Runs the row; returns the next row. */
static const uint32_t *run(const uint32_t *row) {
  struct poet_op op;
  struct poet_call call = {.op = &op, .step = row[0]};
  const int overwrites = (int)row[1];
  const uint32_t out_words = row[2], inputs = row[3];
  const uint32_t *words = row + 4, *data = words + inputs + OP_WORDS;
  const uint32_t *const first = data;
  uint32_t *to = memory;
  memcpy(&op, words + inputs, sizeof op);
  for (uint32_t i = 0; i < inputs; i++) {
    memcpy(to, data, words[i] * 4);
    call.in[i] = to;
    to += words[i];
    *to++ = EDGE;
    data += words[i];
  }
  uint32_t *out = overwrites < 0 ? to : (uint32_t *)call.in[overwrites];
  if (overwrites < 0) {
    for (uint32_t i = 0; i <= out_words; i++)
      *to++ = EDGE;
  }
  call.out = out;
  if (to > memory + sizeof memory / 4)
    finish(2);
  poet_kernel(op.kernel)(&call);
  const uint32_t *at = memory, *given = first;
  for (uint32_t i = 0; i < inputs; i++, at++) {
    if ((int)i != overwrites && memcmp(at, given, words[i] * 4))
      print("an input was written: ");
    at += words[i];
    given += words[i];
    if (*at != EDGE)
      print("written after an input: ");
  }
  if (out[out_words] != EDGE)
    print("written after the output: ");
  print_hex(crc32(out, out_words * 4));
  return data;
}

int main(void) {
  for (const uint32_t *row = cases; row < cases + sizeof cases / 4;)
    row = run(row);
  return 0;
}
