// clock.c is a library that sets the clock of a program back by one day, when the program is started
// with it in LD_PRELOAD. The clock that never goes back stays as it is.
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const time_t day = 86400;

int clock_gettime(clockid_t id, struct timespec *now) {
	int failed = syscall(SYS_clock_gettime, id, now);
	if (!failed && id == CLOCK_REALTIME)
		now->tv_sec -= day;
	return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
	int failed = syscall(SYS_gettimeofday, now, zone);
	if (!failed)
		now->tv_sec -= day;
	return failed;
}

time_t time(time_t *now) {
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	if (now)
		*now = t.tv_sec;
	return t.tv_sec;
}
