/* The random numbers of the fuzzers in C. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

static uint64_t random_state;

/* A random number from 0 to `below` - 1: xorshift64* (Vigna, 2016). */
static uint32_t any(uint32_t below) {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (uint32_t)((random_state * 0x2545f4914f6cdd1du) >> 33) % below;
}

#endif
