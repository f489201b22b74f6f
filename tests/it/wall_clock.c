/* Loaded before the C library (LD_PRELOAD): a wall clock that is off by as many microseconds as the first eight bytes
 * of a file say, which the test changes while the server runs. The monotonic clock is left alone, as a real clock that
 * is set leaves it alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset_usec(void) {
    static volatile int64_t *offset;
    if (offset == NULL) {
        const char *path = getenv("RLOCK_CLOCK");
        int file = path == NULL ? -1 : open(path, O_RDONLY);
        void *page = MAP_FAILED;
        if (file >= 0) {
            page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
            close(file);
        }
        if (page == MAP_FAILED) {
            return 0;
        }
        offset = page;
    }
    return *offset;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t usec = at->tv_sec * 1000000LL + at->tv_nsec / 1000 + offset_usec();
        at->tv_sec = usec / 1000000;
        at->tv_nsec = usec % 1000000 * 1000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return -1;
    }
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL) {
        *at = now.tv_sec;
    }
    return now.tv_sec;
}
