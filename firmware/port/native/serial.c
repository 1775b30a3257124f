/* The serial port: the master side of a pseudo-terminal in raw mode. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include "native.h"

/* How long a host that reads nothing may hold up the board. */
enum { SEND_MS = 1000 };

static int master = -1;

/* The other side is kept open here too: else the master would report an end of
 * file whenever the host closes it. */
const char *native_serial_start(void) {
  struct termios raw;
  master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) || unlockpt(master)) {
    return NULL;
  }
  const char *path = ptsname(master);
  const int slave = path ? open(path, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
  if (slave < 0 || tcgetattr(slave, &raw)) {
    return NULL;
  }
  cfmakeraw(&raw);
  if (tcsetattr(slave, TCSANOW, &raw) || fcntl(master, F_SETFL, O_NONBLOCK) ||
      fcntl(master, F_SETFD, FD_CLOEXEC)) {
    return NULL;
  }
  return path;
}

static int ready(short events, int wait_ms) {
  struct pollfd one = {.fd = master, .events = events};
  return poll(&one, 1, wait_ms) > 0;
}

size_t native_receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms) {
  (void)context;
  if (!ready(POLLIN, (int)wait_ms)) {
    return 0;
  }
  const ssize_t got = read(master, data, size);
  return got > 0 ? (size_t)got : 0;
}

void native_send(void *context, const uint8_t *data, size_t size) {
  (void)context;
  while (size && ready(POLLOUT, SEND_MS)) {
    const ssize_t put = write(master, data, size);
    if (put > 0) {
      data += put;
      size -= (size_t)put;
    } else if (errno != EAGAIN && errno != EINTR) {
      return;
    }
  }
}
