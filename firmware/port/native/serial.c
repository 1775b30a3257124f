/*
 * serial.c - the serial port of the native board: the master side of a
 * pseudo-terminal in raw mode, or a socket for a host on another computer, one
 * host at a time.
 *
 * A host at the socket first sends the line "poet TOKEN". The answer is the
 * line "poet yes", or "poet no" and the end of the connection. The token is not
 * encrypted: ssh encrypts the whole connection.
 *
 * State: `line`, the connection to the host, and `listener`, the socket that
 * accepts hosts; -1 if closed. With a pseudo-terminal, `line` stays open. The
 * system buffers bytes that arrive while no code reads. `wanted` is the first
 * line that a host must send; native_serial_token sets it. `first` holds the
 * part of the host's first line that has arrived: `first_size` bytes. At the
 * end of that line, `admitted` or `refused` is set. `last_ms` is the time
 * when the host connected or, if later, when bytes were last received or sent.
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
#include <time.h>
#include <unistd.h>

#include "native.h"

enum {
  /* longest time for which a host that reads nothing delays the board */
  SEND_MS = 1000,
  TOKEN_MS = 3000, /* time within which a host must send its token */
  WAITING = 8,     /* hosts that may wait for their turn */
  TOKEN_LEAST = 16,
  TOKEN_MOST = 64,
  RANDOM_BYTES = 16,
};

#define HEAD "poet "
enum { HEAD_SIZE = sizeof HEAD - 1, FIRST_MOST = HEAD_SIZE + TOKEN_MOST + 1 };

static int line = -1;     /* connection to the host */
static int listener = -1; /* socket for new connections */
static char wanted[FIRST_MOST + 1];
static char first[FIRST_MOST];
static size_t first_size;
static bool admitted, refused;
static uint64_t last_ms;
/* a host that is silent for this time is disconnected if another host waits */
static uint64_t idle_ms;

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Make a file descriptor non-blocking and private to this process. */
static bool hold(int file) {
  return !fcntl(file, F_SETFL, O_NONBLOCK) && !fcntl(file, F_SETFD, FD_CLOEXEC);
}

/* This process keeps the slave side open too. Otherwise the master would report
 * an end of file whenever the host closes the slave side. */
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

bool native_serial_token(const char *token) {
  char drawn[2 * RANDOM_BYTES + 1];
  if (!token) {
    uint8_t bytes[RANDOM_BYTES] = {0};
    const int source = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (source < 0 || read(source, bytes, sizeof bytes) != sizeof bytes) {
      return false;
    }
    close(source);
    for (size_t i = 0; i < sizeof bytes; i++) {
      snprintf(drawn + 2 * i, 3, "%02x", bytes[i]);
    }
    token = drawn;
  }
  const size_t size = strlen(token);
  if (size < TOKEN_LEAST || size > TOKEN_MOST ||
      strspn(token, "0123456789abcdefghijklmnopqrstuvwxyz"
                    "ABCDEFGHIJKLMNOPQRSTUVWXYZ-_") != size) {
    return false;
  }
  snprintf(wanted, sizeof wanted, HEAD "%s\n", token);
  return true;
}

const char *native_serial_listen(const char *where, uint32_t idle_s) {
  static char url[sizeof "socket://@255.255.255.255:65535" + TOKEN_MOST];
  const int token_size = (int)strlen(wanted) - HEAD_SIZE - 1;
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
  /* Ignore SIGPIPE: the next read finds that the connection is closed. */
  signal(SIGPIPE, SIG_IGN);
  listener = socket(AF_INET, SOCK_STREAM, 0);
  if (listener < 0 || !hold(listener) ||
      setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
      bind(listener, (struct sockaddr *)&at, size) ||
      listen(listener, WAITING) ||
      getsockname(listener, (struct sockaddr *)&at, &size)) {
    return NULL;
  }
  idle_ms = (uint64_t)idle_s * 1000;
  snprintf(url, sizeof url, "socket://%.*s@%s:%u", token_size,
           wanted + HEAD_SIZE, address, ntohs(at.sin_port));
  return url;
}

static int ready(int file, short events, int wait_ms) {
  struct pollfd one = {.fd = file, .events = events};
  return poll(&one, 1, wait_ms) > 0;
}

/* Close the connection, so that the next host can connect. A pseudo-terminal
 * stays open. */
static void hang_up(void) {
  if (listener >= 0) {
    close(line);
    line = -1;
  }
}

/* Make the system close the connection if the host's computer loses its power:
 * `line` is then free after 30 s. */
static bool keep_alive(void) {
  const int on = 1;
  bool done = !setsockopt(line, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef TCP_KEEPIDLE /* other systems use their default times */
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
  first_size = 0;
  admitted = refused = false;
  last_ms = now_ms();
  /* Set TCP_NODELAY, because requests and replies are short and alternate. */
  if (line >= 0 &&
      (!hold(line) ||
       setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) ||
       !keep_alive())) {
    hang_up();
  }
}

/* Return true if `first` equals `wanted`. The comparison takes the same time
 * wherever the two differ. */
static bool token_is_right(void) {
  const size_t size = strlen(wanted);
  volatile unsigned other = first_size != size;
  for (size_t i = 0; i < size; i++) {
    other |= (unsigned char)(first[i] ^ wanted[i]);
  }
  return !other;
}

/* Receive the host's first line, and answer it. After a wrong line, drop all
 * further bytes until the host closes its side or TOKEN_MS have passed: if this
 * side were closed with unread bytes, the host might lose the answer. */
static void admit(const uint8_t *data, size_t size) {
  static const char yes[] = HEAD "yes\n", no[] = HEAD "no\n";
  const size_t room = refused ? 0 : sizeof first - first_size;
  const size_t taken = size < room ? size : room;
  if (!taken) {
    return;
  }
  memcpy(first + first_size, data, taken);
  first_size += taken;
  if (first_size < sizeof first && first[first_size - 1] != '\n' &&
      !memcmp(first, HEAD, first_size < HEAD_SIZE ? first_size : HEAD_SIZE)) {
    return; /* there is more to come */
  }
  admitted = token_is_right();
  refused = !admitted;
  if (admitted) {
    native_send(NULL, (const uint8_t *)yes, sizeof yes - 1);
  } else {
    native_send(NULL, (const uint8_t *)no, sizeof no - 1);
    shutdown(line, SHUT_WR);
  }
}

/* Disconnect a host that does not send its token in time. Also disconnect a
 * silent host if another host waits. */
static void end_silence(void) {
  const uint64_t silent_ms = now_ms() - last_ms;
  if (admitted ? silent_ms >= idle_ms && ready(listener, POLLIN, 0)
               : silent_ms >= TOKEN_MS) {
    hang_up();
  }
}

size_t native_receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms) {
  (void)context;
  if (listener >= 0 && line >= 0) {
    end_silence();
  }
  if (line < 0) {
    answer(wait_ms);
  }
  if (line < 0) {
    return 0;
  }
  ssize_t got = read(line, data, size);
  if (got < 0 && errno == EAGAIN && wait_ms &&
      ready(line, POLLIN, (int)wait_ms)) {
    got = read(line, data, size);
  }
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
    hang_up();
  }
  if (got <= 0) {
    return 0;
  }
  if (listener >= 0 && !admitted) {
    admit(data, (size_t)got);
    return 0;
  }
  last_ms = now_ms();
  return (size_t)got;
}

void native_send(void *context, const uint8_t *data, size_t size) {
  (void)context;
  while (size && line >= 0) {
    const ssize_t put = write(line, data, size);
    if (put > 0) {
      data += put;
      size -= (size_t)put;
      /* A host that receives bytes is not silent: it may be waiting for the
       * board. */
      last_ms = now_ms();
    } else if (errno != EINTR &&
               (errno != EAGAIN || !ready(line, POLLOUT, SEND_MS))) {
      return;
    }
  }
}
