/* native.h - the board as a process: its parts, each in a file of its own. */
#ifndef POET_NATIVE_H
#define POET_NATIVE_H

#include "poet/port.h"

/* storage.c: storage in a file, and the transfer lane, a thread. Starts the
 * thread; false if another process holds the file. `port` must stay. */
bool native_storage_start(const char *path, const struct poet_port *port);
uint32_t native_storage_blocks(void *context);
int native_read(void *context, uint32_t block, void *data, uint32_t count);
int native_write(void *context, uint32_t block, const void *data,
                 uint32_t count);
int native_flush(void *context);
void native_submit(void *context, struct poet_transfer *transfer);
void native_idle(void *context);
void native_usage(void *context, struct poet_usage *usage);

/* serial.c: the master side of a pseudo-terminal. Returns the path of the other
 * side, NULL if there is none to be had. Or a socket at `[ADDRESS:]PORT`, of
 * this computer alone without an address, and any free one as port 0: returns
 * its URL, NULL with errno if it cannot be listened to. */
const char *native_serial_start(void);
const char *native_serial_listen(const char *where);
size_t native_receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms);
void native_send(void *context, const uint8_t *data, size_t size);

#endif
