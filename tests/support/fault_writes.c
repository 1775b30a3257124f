/*
 * fault_writes.c - a library to preload: counts what a command does to files in
 * one folder, and lets one of these events fail or kill the command.
 *
 * Events are opening to create, write, truncate, sync, rename and mkdir. State:
 * `state`, in a file that all processes of the command map (POET_FAULT_STATE).
 * The folder is POET_FAULT_FOLDER.
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
  atomic_int root; /* process of the command */
} *state;
static const char *folder;

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("POET_FAULT_STATE");
  folder = getenv("POET_FAULT_FOLDER");
  const int file = path && folder ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file >= 0) {
    void *found =
        mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    state = found == MAP_FAILED ? NULL : found;
  }
}

static bool is_watched(const char *path) {
  return state && path && !strncmp(path, folder, strlen(folder));
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

/* Count an event. Returns true if it must fail; does not return to be killed.
 */
static bool fails(bool watched) {
  if (!watched) {
    return false;
  }
  const int event = ++state->events;
  if (state->kind == KILL && event >= state->at) {
    kill(state->root, SIGKILL);
    kill(getpid(), SIGKILL);
    pause();
  }
  errno = ENOSPC;
  return state->kind == DISK_IS_FULL && event >= state->at;
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
OF_FILE(ssize_t, write, (int file, const void *data, size_t size),
        (file, data, size))
OF_FILE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at),
        (file, data, size, at))
OF_FILE(ssize_t, pwrite64, (int file, const void *data, size_t size, off_t at),
        (file, data, size, at))
OF_FILE(int, ftruncate, (int file, off_t size), (file, size))
OF_FILE(int, ftruncate64, (int file, off_t size), (file, size))
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, fdatasync, (int file), (file))
OF_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode))
OF_PATH(int, rename, (const char *from, const char *path), (from, path))
