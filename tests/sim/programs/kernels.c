/* Calls of kernels that the test wrote into cases.h, a row of words each:
   step, overwritten input or -1, flags, index, words of the output, number of
   inputs, words of each input, struct poet_op of the part and of the whole, the
   inputs and, without FIRST, the sums. Prints the CRC-32 of each result. */
#include "cases.h"
#include "poet/kernel.h"
#include "test.h"

#include <string.h>

enum { EDGE = 0x7fc0dead, OP_WORDS = sizeof(struct poet_op) / 4 };
enum {
  FIRST = 1,
  LAST = 2,
  SUMS = 4,
  PASS = 8
}; /* SUMS: the result is in them */

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

/* Copies words to memory, and an edge after them. */
static uint32_t *put(uint32_t **to, const uint32_t *from, uint32_t words) {
  uint32_t *begin = *to;
  if (begin + words + 1 > memory + sizeof memory / 4)
    finish(2);
  for (uint32_t i = 0; i < words; i++)
    begin[i] = from ? from[i] : EDGE;
  begin[words] = EDGE;
  *to = begin + words + 1;
  return begin;
}

/* Runs the row; returns the next row. */
static const uint32_t *run(const uint32_t *row) {
  struct poet_op op, whole;
  const uint32_t flags = row[2], out_words = row[4], inputs = row[5];
  const uint32_t *words = row + 6, *data = words + inputs + 2 * OP_WORDS;
  const uint32_t *const given = data;
  const int overwrites = (int)row[1];
  struct poet_call call = {.op = &op,
                           .whole = &whole,
                           .step = row[0],
                           .first = flags & FIRST,
                           .last = flags & LAST,
                           .index = row[3],
                           .pass = flags / PASS};
  uint32_t *to = memory;
  memcpy(&op, words + inputs, sizeof op);
  memcpy(&whole, words + inputs + OP_WORDS, sizeof whole);
  for (uint32_t i = 0; i < inputs; i++) {
    call.in[i] = put(&to, data, words[i]);
    data += words[i];
  }
  const uint32_t *begun = call.first ? NULL : data;
  data += call.first ? 0 : out_words;
  call.sums = (void *)put(&to, begun, out_words);
  call.out =
      overwrites < 0 ? put(&to, begun, out_words) : (void *)call.in[overwrites];
  poet_kernel(op.kernel)(&call);
  const uint32_t *at = given;
  for (uint32_t i = 0; i < inputs; i++) {
    const uint32_t *in = call.in[i];
    if ((int)i != overwrites && memcmp(in, at, words[i] * 4))
      print("an input was written: ");
    if (in[words[i]] != EDGE)
      print("written after an input: ");
    at += words[i];
  }
  const uint32_t *out = flags & SUMS ? (void *)call.sums : call.out;
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
