/*
 * storage.c - storage in a file, and the transfer lane: a thread with a queue.
 *
 * State: struct lane. `first`, `last`, `completed` and `noticed` are used only
 * with `mutex` locked. `asleep`, `reading` and `writing` are atomic, because
 * both threads read and write storage. `file` is -1 until the file has been
 * opened. Every mount tries to open it again, so the file may appear later. A
 * lock on the file keeps two boards from writing to it.
 *
 * Order: a transfer leaves the queue before it runs, and `completed` is
 * incremented after the transfer ends. So native_idle cannot miss
 * the end of a transfer.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "native.h"
#include "poet/records.h"

enum { IDLE_NS = 10 * 1000 * 1000 };

static struct {
  const struct poet_port *port;
  const char *path;
  int file;
  pthread_mutex_t mutex;
  pthread_cond_t submitted;
  pthread_cond_t finished;
  struct poet_transfer *first;          /* of the queue; NULL: empty */
  struct poet_transfer **last;          /* where the next transfer is linked */
  unsigned long completed;              /* transfers that have ended */
  unsigned long noticed;                /* of those, reported by idle */
  atomic_uint asleep, reading, writing; /* ticks */
} lane;

static uint32_t now(void) {
  return lane.port->ticks(NULL);
}

/* The lane's thread: run transfers of the queue in an endless loop. */
static void *run(void *unused) {
  static uint32_t bounce[POET_BLOCK / 4];
  (void)unused;
  pthread_mutex_lock(&lane.mutex);
  for (;;) {
    while (!lane.first) {
      pthread_cond_wait(&lane.submitted, &lane.mutex);
    }
    struct poet_transfer *transfer = lane.first;
    lane.first = transfer->next;
    if (!lane.first) {
      lane.last = &lane.first;
    }
    pthread_mutex_unlock(&lane.mutex);
    poet_transfer_run(lane.port, transfer, (uint8_t *)bounce);
    pthread_mutex_lock(&lane.mutex);
    lane.completed++;
    pthread_cond_signal(&lane.finished);
  }
  return NULL;
}

bool native_storage_start(const char *path, const struct poet_port *port) {
  pthread_condattr_t monotonic;
  pthread_t thread;
  lane.port = port;
  lane.path = path;
  lane.file = open(path, O_RDWR | O_CLOEXEC);
  lane.last = &lane.first;
  if (lane.file >= 0 && flock(lane.file, LOCK_EX | LOCK_NB)) {
    return false;
  }
  pthread_mutex_init(&lane.mutex, NULL);
  pthread_condattr_init(&monotonic);
#ifdef __linux__
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
#endif
  pthread_cond_init(&lane.submitted, NULL);
  pthread_cond_init(&lane.finished, &monotonic);
  return pthread_create(&thread, NULL, run, NULL) == 0;
}

uint32_t native_storage_blocks(void *context) {
  struct stat facts;
  (void)context;
  if (lane.file < 0) {
    lane.file = open(lane.path, O_RDWR | O_CLOEXEC);
    if (lane.file < 0) {
      return 0;
    }
    if (flock(lane.file, LOCK_EX | LOCK_NB)) {
      close(lane.file);
      lane.file = -1; /* the next mount tries to lock it again */
      return 0;
    }
  }
  if (fstat(lane.file, &facts)) {
    return 0;
  }
  const off_t blocks = facts.st_size / (off_t)POET_BLOCK;
  return blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX;
}

/* A file has no allocation unit; that of the disk with the file is unknown. */
uint32_t native_allocation_mib(void *context) {
  (void)context;
  return 0;
}

int native_read(void *context, uint32_t block, void *data, uint32_t count) {
  const size_t size = (size_t)count * POET_BLOCK;
  const uint32_t begin = now();
  (void)context;
  const ssize_t done =
      pread(lane.file, data, size, (off_t)block * (off_t)POET_BLOCK);
  lane.reading += now() - begin;
  return done != (ssize_t)size;
}

int native_write(void *context, uint32_t block, const void *data,
                 uint32_t count) {
  const size_t size = (size_t)count * POET_BLOCK;
  const uint32_t begin = now();
  (void)context;
  const ssize_t done =
      pwrite(lane.file, data, size, (off_t)block * (off_t)POET_BLOCK);
  lane.writing += now() - begin;
  return done != (ssize_t)size;
}

int native_flush(void *context) {
  const uint32_t begin = now();
  (void)context;
#if defined(__linux__)
  const int error = fdatasync(lane.file);
#elif defined(F_FULLFSYNC)
  /* On macOS, fsync leaves the bytes in the cache of the disk. Some file
   * systems do not offer more. */
  const int error = fcntl(lane.file, F_FULLFSYNC) ? fsync(lane.file) : 0;
#else
  const int error = fsync(lane.file);
#endif
  lane.writing += now() - begin;
  return error;
}

void native_submit(void *context, struct poet_transfer *transfer) {
  (void)context;
  transfer->next = NULL;
  pthread_mutex_lock(&lane.mutex);
  *lane.last = transfer;
  lane.last = &transfer->next;
  pthread_cond_signal(&lane.submitted);
  pthread_mutex_unlock(&lane.mutex);
}

/* Return at once if a transfer has ended since the last call: the transfer may
 * have ended after the caller checked and before this call. */
void native_idle(void *context) {
  const uint32_t begin = now();
  struct timespec until;
  (void)context;
#ifdef __linux__
  clock_gettime(CLOCK_MONOTONIC, &until);
#else
  clock_gettime(CLOCK_REALTIME, &until);
#endif
  until.tv_nsec += IDLE_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_mutex_lock(&lane.mutex);
  if (lane.completed == lane.noticed) {
    pthread_cond_timedwait(&lane.finished, &lane.mutex, &until);
  }
  lane.noticed = lane.completed;
  pthread_mutex_unlock(&lane.mutex);
  lane.asleep += now() - begin;
}

void native_usage(void *context, struct poet_usage *usage) {
  (void)context;
  *usage = (struct poet_usage){
      .asleep = lane.asleep, .reading = lane.reading, .writing = lane.writing};
}
