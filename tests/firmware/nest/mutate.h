/* Changes of a schedule, most of which a board does not refuse at once. */
#ifndef MUTATE_H
#define MUTATE_H

#include <stddef.h>
#include <stdint.h>

struct poet;

/* Change an input of schedule.h. Return its new size, or 0 if it is none. */
size_t mutate(uint8_t *data, size_t size, size_t most);
/* Return a board with an empty card: the program has it. */
struct poet *mutate_board(void);

#endif
