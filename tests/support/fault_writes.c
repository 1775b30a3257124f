/*
 * fault_writes.c - a library to preload: counts what a command does to files in
 * some folders, and lets one of these events fail or kill the command.
 *
 * Events are opening to create, write, truncate, sync, rename, mkdir, unlink
 * and rmdir. Of the write that fails, the first half still reaches the file. A
 * full disk still removes and shortens files. State: `state`, in a file that
 * all processes of the command map (POET_FAULT_STATE). The folders are
 * POET_FAULT_FOLDERS, separated by colons.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { COUNT, DISK_IS_FULL, KILL };

static struct {
  atomic_int events; /* so far */
  atomic_int at;     /* event that fails, from 1; with a full disk, all later */
  atomic_int kind;
  atomic_int root;    /* process of the command */
  atomic_int watched; /* bit i: events in folder i count */
} *state;
static const char *folders;

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("POET_FAULT_STATE");
  folders = getenv("POET_FAULT_FOLDERS");
  const int file = path && folders ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file >= 0) {
    void *found =
        mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    state = found == MAP_FAILED ? NULL : found;
  }
}

static bool is_watched(const char *path) {
  int bit = 0;
  for (const char *at = folders; state && path && at; bit++) {
    const size_t size = strcspn(at, ":");
    if (!strncmp(path, at, size) && path[size] == '/') {
      return state->watched >> bit & 1;
    }
    at = at[size] ? at + size + 1 : NULL;
  }
  return false;
}

static bool is_watched_file(int file) {
  char link[32], path[PATH_MAX];
  if (!state) {
    return false;
  }
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  path[size < 0 ? 0 : size] = 0;
  return is_watched(path);
}

static void die(void) {
  kill(state->root, SIGKILL);
  kill(getpid(), SIGKILL);
  pause();
}

/* Count an event. Returns true if it must fail; does not return to be killed.
 */
static bool fails(bool watched) {
  if (!watched) {
    return false;
  }
  const int event = ++state->events;
  if (state->kind == KILL && event >= state->at) {
    die();
  }
  errno = ENOSPC;
  return state->kind == DISK_IS_FULL && event >= state->at;
}

/* Count a write of `size` bytes. Returns how many of them must be written: the
 * half of the write that fails, and 0 of later ones. */
static size_t allowed(int file, size_t size) {
  if (!is_watched_file(file)) {
    return size;
  }
  const int event = ++state->events;
  const bool late = state->kind != COUNT && event >= state->at;
  return !late ? size : event == state->at ? size / 2 : 0;
}

/* After a write that must have ended: kill the command, or say what happened.
 */
static ssize_t written(size_t wanted, size_t size, ssize_t done) {
  if (size == wanted) {
    return done;
  }
  if (state->kind == KILL) {
    die();
  }
  errno = ENOSPC;
  return size ? done : -1;
}

static bool grows(int file, off_t size) {
  struct stat found;
  return fstat(file, &found) || size > found.st_size;
}

#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))

/* A function of the file `file`, and one of the path `path`. */
#define OF_FILE(result, name, parameters, arguments)                           \
  result name parameters {                                                     \
    typedef result real parameters;                                            \
    return fails(is_watched_file(file)) ? -1 : REAL(real *, #name) arguments;  \
  }
#define OF_PATH(result, name, parameters, arguments)                           \
  result name parameters {                                                     \
    typedef result real parameters;                                            \
    return fails(is_watched(path)) ? -1 : REAL(real *, #name) arguments;       \
  }
#define OPEN(name)                                                             \
  int name(const char *path, int flags, ...) {                                 \
    typedef int real(const char *, int, ...);                                  \
    va_list list;                                                              \
    va_start(list, flags);                                                     \
    const mode_t mode = va_arg(list, mode_t);                                  \
    va_end(list);                                                              \
    const bool creates = flags & (O_CREAT | O_TRUNC | __O_TMPFILE);            \
    return fails(creates && is_watched(path))                                  \
               ? -1                                                            \
               : REAL(real *, #name)(path, flags, mode);                       \
  }

OPEN(open)
OPEN(open64)
#define OF_WRITE(name, parameters, arguments)                                  \
  ssize_t name parameters {                                                    \
    typedef ssize_t real parameters;                                           \
    const size_t wanted = size;                                                \
    size = allowed(file, wanted);                                              \
    const ssize_t done = size || !wanted ? REAL(real *, #name) arguments : 0;  \
    return written(wanted, size, done);                                        \
  }
#define OF_SIZE(name)                                                          \
  int name(int file, off_t size) {                                             \
    typedef int real(int, off_t);                                              \
    return fails(is_watched_file(file)) && grows(file, size)                   \
               ? -1                                                            \
               : REAL(real *, #name)(file, size);                              \
  }
#define REMOVAL(result, name, parameters, arguments, watched)                  \
  result name parameters {                                                     \
    typedef result real parameters;                                            \
    (void)fails(watched);                                                      \
    return REAL(real *, #name) arguments;                                      \
  }

OF_WRITE(write, (int file, const void *data, size_t size), (file, data, size))
OF_WRITE(pwrite, (int file, const void *data, size_t size, off_t at),
         (file, data, size, at))
OF_WRITE(pwrite64, (int file, const void *data, size_t size, off_t at),
         (file, data, size, at))
OF_SIZE(ftruncate)
OF_SIZE(ftruncate64)
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, fdatasync, (int file), (file))
OF_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
OF_PATH(int, rename, (const char *from, const char *path), (from, path))
REMOVAL(int, unlink, (const char *path), (path), is_watched(path))
REMOVAL(int, rmdir, (const char *path), (path), is_watched(path))
REMOVAL(int, unlinkat, (int file, const char *path, int flags),
        (file, path, flags), is_watched_file(file) || is_watched(path))
