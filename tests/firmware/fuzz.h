/*
 * fuzz.h - the main function of the fuzzers in C.
 *
 *     fuzz SEED ROUNDS [FILE...]     the same rounds every time
 *     fuzz SEED -SECONDS [FILE...]   round after round, for as long as that
 *
 * The file that includes it defines SEEN before, and prepare(), play() and
 * names after. A round that breaks a rule ends the program: its number is the
 * last number on standard error, and `fuzz NUMBER 1` repeats it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "random.h"

static const char *const names[SEEN]; /* of the counters in `seen` */
static uint64_t seen[SEEN];           /* how often a round did what */
static uint64_t round_number;
static char **files; /* NULL ends the list */

static void prepare(void); /* once, before the first round */
static void play(void);    /* one round */

int main(int count, char **arguments) {
  if (count < 3) {
    fprintf(stderr, "usage: %s SEED ROUNDS|-SECONDS [FILE...]\n", arguments[0]);
    return 2;
  }
  const uint64_t first = strtoull(arguments[1], NULL, 10);
  const long long limit = atoll(arguments[2]);
  const time_t end = time(NULL) + (time_t)(limit < 0 ? -limit : 0);
  uint64_t rounds = 0;
  files = arguments + 3;
  prepare();
  while (limit < 0 ? time(NULL) < end : rounds < (uint64_t)limit) {
    round_number = first + rounds++;
    fprintf(stderr, "\r%" PRIu64, round_number);
    random_state = round_number * 0x9e3779b97f4a7c15u + 1;
    play();
  }
  printf("rounds %" PRIu64 "\n", rounds);
  for (unsigned i = 0; i < SEEN; i++)
    printf("%s %" PRIu64 "\n", names[i], seen[i]);
  return 0;
}
