/* Changes of a card's content, and the checksums that make a reader accept
   them. */
#ifndef CHANGE_H
#define CHANGE_H

#include "../board.h"

/* Find the trailers of the stored tensors of a good card, with a board that has
   loaded its schedule. */
void change_prepare(struct card *card, struct poet *loaded, unsigned number);
/* Use card `number` of those prepared. */
void change_start(unsigned number);
/* Change fields of the card, then renew checksums, all or some or none. */
void change_card(void);

#endif
