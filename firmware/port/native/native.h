/* native.h - the interface between the files of the native port. */
#ifndef POET_NATIVE_H
#define POET_NATIVE_H

#include "poet/port.h"

/* storage.c: storage in a file, and the transfer lane, which is a thread.
 * native_storage_start starts the thread. It returns false if another process
 * has locked the file. `path` and `port` must stay valid. The other functions
 * belong to struct poet_port. */
bool native_storage_start(const char *path, const struct poet_port *port);
uint32_t native_storage_blocks(void *context);
uint32_t native_allocation_mib(void *context);
POET_CHECKED int native_read(void *context, uint32_t block, void *data,
                             uint32_t count);
POET_CHECKED int native_write(void *context, uint32_t block, const void *data,
                              uint32_t count);
POET_CHECKED int native_flush(void *context);
void native_submit(void *context, struct poet_transfer *transfer);
void native_idle(void *context);
void native_usage(void *context, struct poet_usage *usage);

/* serial.c: the serial port. native_serial_start opens a pseudo-terminal and
 * returns the path of its other side, or NULL. native_serial_listen opens a
 * socket at `[ADDRESS:]PORT` and returns its URL, or NULL with errno set.
 * Without ADDRESS, only this computer can connect. PORT 0 takes any free port.
 * A host that sends nothing for `idle_s` seconds is disconnected if another
 * host waits. Call native_serial_token first: it sets the token that hosts must
 * know. If its argument is NULL, the token is random. It returns false if the
 * token breaks TOKEN_RULE. */
#define TOKEN_RULE                                                             \
  "POET_TOKEN must have 16 to 64 characters, only letters, digits, - and _"
const char *native_serial_start(void);
bool native_serial_token(const char *token);
const char *native_serial_listen(const char *where, uint32_t idle_s);
size_t native_receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms);
void native_send(void *context, const uint8_t *data, size_t size);

#endif
