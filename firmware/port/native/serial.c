/*
 * serial.c - the serial port of the native board: the master side of a
 * pseudo-terminal in raw mode, or a socket for a host on another computer, one
 * host at a time.
 *
 * State: `line`, the connection to the host, and `listener`, the socket that
 * accepts hosts; -1 if closed. With a pseudo-terminal `line` stays open. Bytes
 * that arrive while nobody reads are buffered by the system.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include "native.h"

/* Time for which a host that reads nothing may delay the board. */
enum { SEND_MS = 1000 };

static int line = -1;     /* connection to the host */
static int listener = -1; /* socket for new connections */

/* Make a file descriptor non-blocking and private to this process. */
static bool hold(int file) {
  return !fcntl(file, F_SETFL, O_NONBLOCK) && !fcntl(file, F_SETFD, FD_CLOEXEC);
}

/* The slave side stays open here too. Otherwise the master would report an end
 * of file whenever the host closes it. */
const char *native_serial_start(void) {
  struct termios raw;
  line = posix_openpt(O_RDWR | O_NOCTTY);
  if (line < 0 || grantpt(line) || unlockpt(line)) {
    return NULL;
  }
  const char *path = ptsname(line);
  const int slave = path ? open(path, O_RDWR | O_NOCTTY | O_CLOEXEC) : -1;
  if (slave < 0 || tcgetattr(slave, &raw)) {
    return NULL;
  }
  cfmakeraw(&raw);
  if (tcsetattr(slave, TCSANOW, &raw) || !hold(line)) {
    return NULL;
  }
  return path;
}

const char *native_serial_listen(const char *where) {
  static char url[sizeof "socket://255.255.255.255:65535"];
  struct sockaddr_in at = {.sin_family = AF_INET};
  socklen_t size = sizeof at;
  char address[INET_ADDRSTRLEN] = "127.0.0.1";
  const int on = 1;
  const char *colon = strrchr(where, ':');
  const char *number = colon ? colon + 1 : where;
  char *rest;
  const unsigned long port = strtoul(number, &rest, 10);
  errno = EINVAL;
  if (*number < '0' || *number > '9' || *rest || port > UINT16_MAX ||
      (colon && (size_t)(colon - where) >= sizeof address)) {
    return NULL;
  }
  if (colon) {
    memcpy(address, where, (size_t)(colon - where));
    address[colon - where] = 0;
  }
  at.sin_port = htons((uint16_t)port);
  if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
    return NULL;
  }
  /* the next read finds that the connection is closed */
  signal(SIGPIPE, SIG_IGN);
  listener = socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0 || !hold(listener) ||
      setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
      bind(listener, (struct sockaddr *)&at, size) || listen(listener, 1) ||
      getsockname(listener, (struct sockaddr *)&at, &size)) {
    return NULL;
  }
  snprintf(url, sizeof url, "socket://%s:%u", address, ntohs(at.sin_port));
  return url;
}

static int ready(int file, short events, int wait_ms) {
  struct pollfd one = {.fd = file, .events = events};
  return poll(&one, 1, wait_ms) > 0;
}

/* Close the connection; the next host may connect. Not for a pty. */
static void hang_up(void) {
  if (listener >= 0) {
    close(line);
    line = -1;
  }
}

/* If the host's computer loses its power, the line is free after 30 s. */
static bool keep_alive(void) {
  const int on = 1;
  bool done = !setsockopt(line, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE /* other systems keep their default times for this */
  const int idle_s = 15, interval_s = 5, times = 3;
  done = done &&
         !setsockopt(line, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) &&
         !setsockopt(line, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s,
                     sizeof interval_s) &&
         !setsockopt(line, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
#endif
  return done;
}

/* Accept the next host's connection. */
static void answer(uint32_t wait_ms) {
  const int on = 1;
  if (!ready(listener, POLLIN, (int)wait_ms)) {
    return;
  }
  line = accept(listener, NULL, NULL);
  /* TCP_NODELAY, because requests and replies are short and alternate. */
  if (line >= 0 &&
      (!hold(line) ||
       setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
       !keep_alive())) {
    hang_up();
  }
}

size_t native_receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms) {
  (void)context;
  if (line < 0) {
    answer(wait_ms);
  }
  if (line < 0 || !ready(line, POLLIN, (int)wait_ms)) {
    return 0;
  }
  const ssize_t got = read(line, data, size);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    hang_up();
  }
  return got > 0 ? (size_t)got : 0;
}

void native_send(void *context, const uint8_t *data, size_t size) {
  (void)context;
  while (size && line >= 0 && ready(line, POLLOUT, SEND_MS)) {
    const ssize_t put = write(line, data, size);
    if (put > 0) {
      data += put;
      size -= (size_t)put;
    } else if (errno != EAGAIN && errno != EINTR) {
      return;
    }
  }
}
