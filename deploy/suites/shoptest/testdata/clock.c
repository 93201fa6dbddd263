/* A wall clock that can be set for one process: preloaded, it adds what stands in a mapped file, in nanoseconds, to
 * CLOCK_REALTIME, and leaves every other clock alone. It takes no memory and no lock, for an allocator may ask for
 * the time before anything is ready for that. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t none;
static const volatile int64_t *ahead = &none;

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("CLOCK_FILE");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0) return;
	void *page = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (page != MAP_FAILED) ahead = page;
}

static void move(struct timespec *t) {
	const int64_t second = 1000000000;
	int64_t by = *ahead, rest = t->tv_nsec + by % second;
	t->tv_sec += by / second;
	if (rest < 0) {
		rest += second;
		t->tv_sec--;
	} else if (rest >= second) {
		rest -= second;
		t->tv_sec++;
	}
	t->tv_nsec = rest;
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int failed = syscall(SYS_clock_gettime, id, t);
	if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) move(t);
	return failed;
}

int gettimeofday(struct timeval *t, void *zone) {
	struct timespec now;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to) {
	struct timespec now;
	if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
	if (to) *to = now.tv_sec;
	return now.tv_sec;
}
