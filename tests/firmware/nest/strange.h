/* A number that fits badly: a limit, a neighbour of the old one, another bit.
 */
#ifndef STRANGE_H
#define STRANGE_H

#include <stdint.h>

uint32_t strange(uint32_t old);

#endif
