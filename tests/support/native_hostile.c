/* Candidates that are not what they should be. All double n floats, or not. */
#include "headrace_pool.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KERNEL(name, body)                                                                                            \
    void name(hr_pool *pool, void *const *buffers, const int64_t *sizes) {                                            \
        const float *x = buffers[0];                                                                                  \
        float *y = buffers[1];                                                                                        \
        int64_t n = sizes[0];                                                                                         \
        (void)pool, (void)x, (void)y, (void)n;                                                                        \
        body                                                                                                          \
    }
#define FROM_TO(from, to) for (int64_t j = (from); j < (to); j++) y[j] = 2 * x[j];

KERNEL(good, FROM_TO(0, n))
KERNEL(slow, for (int k = 0; k < 40; k++) { FROM_TO(0, n) __asm__ volatile("" : : : "memory"); })
/* Goes from a cache line to one far away that it only knows of from what it read: a miss costs it the whole latency. */
KERNEL(wanders, int64_t line = 0; int64_t lines = n / 16;
       for (int64_t i = 0; i < lines; i++) {
           FROM_TO(line * 16, line * 16 + 16)
           line = (5 * line + 1 + (int64_t)(x[line * 16] * 0)) % lines;
       })
KERNEL(segfault, *(volatile int *)16 = 1;)
KERNEL(endless, for (;;) __asm__ volatile("");)
KERNEL(makes_nan, FROM_TO(0, n) y[7] = NAN;)
KERNEL(makes_infinity, FROM_TO(0, n) y[7] = INFINITY;)
KERNEL(leaves_one_out, FROM_TO(0, n - 1))
KERNEL(is_wrong, FROM_TO(0, n) y[5] += 1; y[6] -= 3;)
KERNEL(writes_after, FROM_TO(0, n) y[n] = 0;)
KERNEL(writes_before, FROM_TO(0, n) y[-1] = 0;)
KERNEL(copies_too_much, memcpy(y, x, (size_t)(n + 1) * 4); FROM_TO(0, n))
KERNEL(adds_too_much, FROM_TO(0, n) y[n] += 1;)
KERNEL(reads_after, FROM_TO(0, n) volatile float seen = x[n]; (void)seen;)
KERNEL(writes_input, ((float *)x)[0] = 1; FROM_TO(0, n))
KERNEL(exits, exit(0);)
KERNEL(exits_quickly, _exit(0);)
KERNEL(closes_files, FROM_TO(0, n) for (int i = 0; i < 200; i++) close(i);)
KERNEL(is_noisy, for (int i = 0; i < 3000; i++) { puts("noise"); fputs("noise\n", stderr); } fflush(0); FROM_TO(0, n))
KERNEL(writes_to_the_socket, for (int i = 3; i < 30; i++) if (write(i, "{\"id\": -1}\n[]\n", 14) < 0) {} FROM_TO(0, n))
KERNEL(is_hungry, volatile char *p = malloc((size_t)8 << 30); p[0] = 1; FROM_TO(0, n))
KERNEL(aborts, abort();)
KERNEL(stops_itself, raise(SIGSTOP);)
KERNEL(kills_its_session, kill(0, SIGKILL);)
KERNEL(shifts_too_far, volatile int bits = 40; y[0] = (float)(1 << bits); FROM_TO(0, n))
KERNEL(recurses, FROM_TO(0, n) good(pool, buffers, sizes); volatile char room[64 << 20]; for (int i = 0; i < 64 << 20; i += 4096) room[i] = 1;)
static int calls;
KERNEL(fails_later, FROM_TO(0, n) if (++calls > 3) raise(SIGSEGV);)
static int calls_of_drifting;
KERNEL(is_wrong_later, FROM_TO(0, n) if (++calls_of_drifting > 3) y[0] = 99;)

static void crash(void *context, int thread, int threads, hr_sync *sync) {
    if (thread == threads - 1) *(volatile int *)context = 1;
    (void)sync;
}
KERNEL(crashes_on_another_thread, hr_pool_run_all(pool, crash, (void *)16, 0);)

static void *crash_later(void *nothing) {
    usleep(30000);
    *(volatile int *)16 = 1;
    return nothing;
}
KERNEL(leaves_a_thread_that_crashes, FROM_TO(0, n) pthread_t t; pthread_create(&t, 0, crash_later, 0);)

/* In place. */
void adds_one(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
    float *y = buffers[0];
    for (int64_t i = 0; i < sizes[0]; i++) y[i] += (float)sizes[1];
    (void)pool;
}
