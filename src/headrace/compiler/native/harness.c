/* Runs a kernel on trial several times and looks at the clock. */
#include "headrace_pool.h"

#include <time.h>

typedef void (*hr_kernel)(hr_pool *pool, void *const *buffers, const int64_t *sizes);

typedef struct {
    const uint64_t *memory;
    int64_t words;
} sweep;

static volatile uint64_t sink;

/* Each thread reads its share of memory that nothing else uses, and with it empties its caches. */
static void read_share(void *context, int thread, int threads, hr_sync *sync) {
    const sweep *s = context;
    uint64_t seen = 0;
    for (int64_t i = s->words / threads * thread; i < s->words / threads * (thread + 1); i += 8) seen ^= s->memory[i];
    sink = seen;
    (void)sync;
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ns[i]: what run i took. `memory`: bytes to read before each run, so that nothing is in the caches; NULL: do not. */
void hr_time(hr_kernel kernel, hr_pool *pool, void *const *buffers, const int64_t *sizes, int64_t runs,
             const void *memory, int64_t bytes, int64_t *ns) {
    for (int64_t i = 0; i < runs; i++) {
        sweep s = {memory, bytes / 8};
        if (memory) hr_pool_run_all(pool, read_share, &s, 0);
        int64_t begin = now_ns();
        kernel(pool, buffers, sizes);
        ns[i] = now_ns() - begin;
    }
}
