/*
 * clock.c: preloaded into a redis-server, this library shifts the wall clock of the process. The
 * variable LATCHKIT_CLOCK names a file that has the shift in microseconds. The monotonic clock does
 * not change.
 *
 * The library calls the kernel directly. Looking up the C library's own functions would allocate
 * memory, but the allocator of redis-server reads the time before the allocator is ready.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void map_file(void) {
  const char *name = getenv("LATCHKIT_CLOCK");
  int file = name ? open(name, O_RDONLY) : -1;
  void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (page == MAP_FAILED) abort();
  shift = page;
}

static int64_t wall(void) { /* in ns */
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + (shift ? *shift * 1000 : 0);
}

int clock_gettime(clockid_t which, struct timespec *out) {
  if (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE) {
    return (int)syscall(SYS_clock_gettime, which, out);
  }
  int64_t ns = wall();
  out->tv_sec = ns / 1000000000;
  out->tv_nsec = ns % 1000000000;
  return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  (void)zone;
  int64_t ns = wall();
  out->tv_sec = ns / 1000000000;
  out->tv_usec = ns % 1000000000 / 1000;
  return 0;
}

time_t time(time_t *out) {
  time_t now = wall() / 1000000000;
  if (out) *out = now;
  return now;
}
