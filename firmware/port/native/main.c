/*
 * main.c - the native board: the firmware as a process, on the host or on Linux
 * boards. The serial port of the board is a pty, or a socket for hosts on other
 * computers. The first line on stdout is the path of the pty or the URL of the
 * socket. The card of the board is a file.
 *
 * State: all tables of the library are static; the arena is mapped at start.
 * The process ends with SIGTERM, SIGINT, SIGKILL, or when its parent ends. It
 * needs no cleanup: for the storage file, the end of the process is at worst
 * like a power cut, which leaves the last committed step.
 *
 *   poet-native --storage FILE --arena BYTES [--board NAME] [--id TEXT]
 *               [--listen [ADDRESS:]PORT] [--idle SECONDS] [--alone]
 *
 * With --listen, hosts must know the token in the printed URL. The environment
 * variable POET_TOKEN sets the token; without this variable, the token is
 * random. With --alone, the board trains by the job on its card before it
 * serves requests.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef POET_POISON
#include <sanitizer/asan_interface.h>

#include "../samd21/sizes.h"
#endif

#include "native.h"
#include "poet/server.h"

enum {
#ifdef POET_POISON
  /* the tables of the MKR1000, so that tests have no more memory than it has */
  RESIDENTS = BOARD_RESIDENTS,
  TENSORS = BOARD_TENSORS,
  QUEUE = BOARD_QUEUE,
  SLABS = 1, /* the MKR1000 has none: too few for any table of words */
  TRACE = BOARD_TRACE,
  CACHE = 1, /* one block, so that tests read storage at almost every access */
  FRAME = BOARD_FRAME,
#else
  RESIDENTS = 16384,
  TENSORS = 16384,
  QUEUE = 64,
  SLABS = 1 << 20,
  TRACE = 32768,
  CACHE = 64,
  FRAME = UINT16_MAX, /* hello names it in 16 bits */
#endif
  TICK_HZ = 10 * 1000 * 1000,
  WATCH_MS = 200,
  /* a host that is silent for this time is disconnected if another host
   * waits */
  IDLE_S = 60,
  USAGE = 2,
  RED_ZONE = 4096, /* bytes after the arena that no code may use */
};

static struct poet_resident residents[RESIDENTS];
static uint32_t bitmap[(TENSORS + 31) / 32];
static struct poet_transfer queue[QUEUE];
static uint8_t steps[(SLABS + 3) / 4];
static struct poet_rows rows = {.steps = steps, .capacity = SLABS};
static struct poet_trace trace[TRACE];
static struct poet_cache cache[CACHE];
static uint32_t frame[(POET_FRAME_BUFFER(FRAME) + 3) / 4];
/* received bytes: those from input_next to input_size are not taken yet */
static uint8_t input[POET_FRAME_BUFFER(FRAME)];
static size_t input_size, input_next;
static struct poet board;
static pid_t parent;

static uint32_t ticks(void *context) {
  struct timespec t;
  (void)context;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint32_t)((uint64_t)t.tv_sec * TICK_HZ +
                    (uint64_t)t.tv_nsec / (1000000000 / TICK_HZ));
}

/* Receive bytes, none after a zero. This function is called often, even during
 * a step, so it also checks whether the parent process has ended. A signal
 * cannot replace this check: PR_SET_PDEATHSIG comes when the thread that has
 * started this process ends. */
static size_t receive(void *context, uint8_t *data, size_t size,
                      uint32_t wait_ms) {
  if (input_next == input_size) {
    input_next = 0;
    input_size = native_receive(context, input, sizeof input, wait_ms);
    if (!input_size && getppid() != parent) {
      exit(0);
    }
  }
  const uint8_t *const bytes = input + input_next;
  const size_t left = input_size - input_next;
  const size_t most = left < size ? left : size;
  const uint8_t *const zero = memchr(bytes, 0, most);
  const size_t count = zero ? (size_t)(zero - bytes) + 1 : most;
  memcpy(data, bytes, count);
  input_next += count;
  return count;
}

static int usage(const char *why) {
  fprintf(stderr,
          "poet-native: %s\n"
          "usage: poet-native --storage FILE --arena BYTES [--board NAME] "
          "[--id TEXT] [--listen [ADDRESS:]PORT] [--idle SECONDS] "
          "[--alone]\n",
          why);
  return USAGE;
}

int main(int argc, char **argv) {
  static const struct option options[] = {
      {"storage", required_argument, 0, 's'},
      {"alone", no_argument, 0, 'o'},
      {"arena", required_argument, 0, 'a'},
      {"board", required_argument, 0, 'b'},
      {"id", required_argument, 0, 'i'},
      {"idle", required_argument, 0, 't'},
      {"listen", required_argument, 0, 'l'},
      {0, 0, 0, 0}};
  struct poet_port port = {.board = "native",
                           .unique_id = "native",
                           .tick_hz = TICK_HZ,
                           .ticks = ticks,
                           .usage = native_usage,
                           .idle = native_idle,
                           .storage_blocks = native_storage_blocks,
                           .allocation_mib = native_allocation_mib,
                           .read = native_read,
                           .write = native_write,
                           .flush = native_flush,
                           .submit = native_submit,
                           .lane_checks = true,
                           .receive = receive,
                           .send = native_send};
  struct poet_memory memory = {.residents = residents,
                               .resident_capacity = RESIDENTS,
                               .bitmap = bitmap,
                               .tensor_capacity = TENSORS,
                               .queue = queue,
                               .queue_capacity = QUEUE,
                               .cache_blocks = CACHE,
                               .cache = cache,
                               .trace = trace,
                               .trace_capacity = TRACE,
                               .rows = &rows};
  struct poet_server server = {
      .poet = &board, .frame = (uint8_t *)frame, .frame_bytes = FRAME};
  const char *storage = NULL, *listen = NULL;
  char *rest = "";
  char *idle_rest = "";
  unsigned long arena_bytes = 0, idle_s = IDLE_S;
  bool alone = false;
  int option;

  parent = getppid();
  /* Restore the default action: a shell makes background jobs ignore these
   * signals, and child processes inherit this setting. */
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
    switch (option) {
    case 's':
      storage = optarg;
      break;
    case 'a':
      arena_bytes = strtoul(optarg, &rest, 10);
      break;
    case 'o':
      alone = true;
      break;
    case 'b':
      port.board = optarg;
      break;
    case 'l':
      listen = optarg;
      break;
    case 't':
      idle_s = strtoul(optarg, &idle_rest, 10);
      break;
    case 'i':
      port.unique_id = optarg;
      break;
    default:
      return usage("unknown argument");
    }
  }
  if (!storage || optind < argc || *rest || arena_bytes < 4 ||
      arena_bytes > UINT32_MAX - 3) {
    return usage("a storage file and an arena of at least 4 bytes are needed");
  }
  if (*idle_rest || !idle_s || idle_s > UINT32_MAX) {
    return usage("--idle needs a number of seconds, at least 1");
  }
  if (listen && !native_serial_token(getenv("POET_TOKEN"))) {
    return usage(TOKEN_RULE);
  }
  memory.arena_bytes = (uint32_t)arena_bytes;
  memory.arena = mmap(NULL, arena_bytes + RED_ZONE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory.arena == MAP_FAILED) {
    return usage("the arena is larger than this machine's memory");
  }
#ifdef POET_POISON
  ASAN_POISON_MEMORY_REGION(memory.arena + arena_bytes, RED_ZONE);
#endif
  if (!native_storage_start(storage, &port)) {
    fprintf(stderr, "poet-native: another board uses %s\n", storage);
    return USAGE;
  }
  const char *path = listen ? native_serial_listen(listen, (uint32_t)idle_s)
                            : native_serial_start();
  if (!path) {
    perror(listen ? "poet-native: cannot listen there"
                  : "poet-native: no pseudo-terminal");
    return USAGE;
  }
  poet_init(&board, &port, &memory);
  printf("%s\n", path);
  fflush(stdout);
  if (alone) {
    /* After an error, wait for a host. */
    poet_ignore(poet_serve_alone(&server));
  }
  for (;;) {
    poet_serve(&server, WATCH_MS);
  }
}
