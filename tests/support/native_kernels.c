/* Kernels for the tests of the pool. */
#include "headrace_pool.h"

#include <math.h>

typedef struct {
    const int64_t *sizes;
    int64_t *counts;  /* one a task, of all stages */
    int64_t *order;   /* the largest stage that a task of each stage saw finished */
    int64_t *threads; /* how often each thread took a task */
} job;

/* sizes: stages, then the tasks of each. Every task adds 1 to its count, and checks that the stage before is whole. */
static void walk(void *context, int thread, int threads, hr_sync *sync) {
    job *j = context;
    hr_cursor at = hr_begin(sync);
    int64_t first = 0, before = 0;
    (void)threads;
    for (int64_t stage = 0; stage < j->sizes[0]; stage++) {
        int64_t tasks = j->sizes[1 + stage];
        for (int64_t i; (i = hr_claim(&at, tasks)) >= 0;) {
            int64_t whole = 1;
            for (int64_t k = before; k < first; k++) whole &= j->counts[k] == 1;
            j->counts[first + i]++;
            j->order[first + i] = whole;
            j->threads[thread * 8]++;
        }
        before = first;
        first += tasks;
    }
}

void stages(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
    job j = {sizes, buffers[0], buffers[1], buffers[2]};
    hr_pool_run(pool, walk, &j, sizes[0]);
}

static job later;
void stages_later(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
    later = (job){sizes, buffers[0], buffers[1], buffers[2]};
    hr_pool_start(pool, walk, &later, sizes[0]);
}

/* sizes[0] rounds of: each thread writes its cell, all meet, each reads its neighbour's. */
static void ring(void *context, int thread, int threads, hr_sync *sync) {
    job *j = context;
    for (int64_t round = 1; round <= j->sizes[0]; round++) {
        j->counts[thread * 8] = round;
        hr_barrier(sync, threads);
        if (j->counts[(thread + 1) % threads * 8] == round) j->order[thread * 8]++;
        hr_barrier(sync, threads);
    }
}

void barriers(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
    job j = {sizes, buffers[0], buffers[1], 0};
    hr_pool_run_all(pool, ring, &j, 0);
}

/* One denormal product a thread, which is 0 where denormals are flushed. */
static void denormal(void *context, int thread, int threads, hr_sync *sync) {
    float *out = context;
    volatile float tiny = 1e-38f;
    out[thread] = tiny * 0.01f;
    (void)threads, (void)sync;
}

void denormals(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
#if defined(__x86_64__)
    uint32_t old = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(old | 0x8040); /* as a library built with -ffast-math leaves it */
#endif
    hr_pool_run_all(pool, denormal, buffers[0], 0);
#if defined(__x86_64__)
    ((float *)buffers[0])[pool->threads] = (float)(__builtin_ia32_stmxcsr() == (old | 0x8040));
    __builtin_ia32_ldmxcsr(old);
#else
    ((float *)buffers[0])[pool->threads] = 1;
#endif
    (void)sizes;
}

static void too_many(void *context, int thread, int threads, hr_sync *sync) {
    hr_cursor at = hr_begin(sync);
    while (hr_claim(&at, 1) >= 0) {}
    while (hr_claim(&at, 1) >= 0) {}
    (void)context, (void)thread, (void)threads;
}

void more_stages_than_announced(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
    (void)buffers, (void)sizes;
    hr_pool_run(pool, too_many, 0, 1);
}

/* y = 2 x in blocks of 16, on all threads. */
static void double_block(void *context, int thread, int threads, hr_sync *sync) {
    void *const *b = context;
    const float *x = b[0];
    float *y = b[1];
    int64_t n = *(const int64_t *)b[2];
    hr_cursor at = hr_begin(sync);
    for (int64_t i; (i = hr_claim(&at, (n + 15) / 16)) >= 0;)
        for (int64_t k = i * 16; k < n && k < i * 16 + 16; k++) y[k] = 2 * x[k];
    (void)thread, (void)threads;
}

void doubled(hr_pool *pool, void *const *buffers, const int64_t *sizes) {
    void *context[] = {buffers[0], buffers[1], (void *)sizes};
    hr_pool_run(pool, double_block, context, 1);
}

#ifdef MAIN
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
hr_pool *hr_pool_open(int threads, const int32_t *cpus, int64_t spin_ns, int64_t idle_ns);
void hr_pool_close(hr_pool *pool);

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    static int64_t counts[100000], order[100000], taken[1024];
    for (int setting = 0; setting < 3; setting++) {
        hr_pool *pool = hr_pool_open(3, 0, setting * 2000, setting * 2000);
        for (int n = 0; n < rounds; n++) {
            int64_t sizes[32] = {1 + n % 30}, total = 0;
            for (int i = 0; i < sizes[0]; i++) total += sizes[1 + i] = (n * 7 + i * 5) % 11;
            for (int i = 0; i < total; i++) counts[i] = order[i] = 0;
            void *buffers[] = {counts, order, taken};
            stages(pool, buffers, sizes);
            for (int i = 0; i < total; i++)
                if (counts[i] != 1 || order[i] != 1) return printf("setting %d, run %d, task %d\n", setting, n, i), 1;
            if (n % 10 == 0) {
                for (int i = 0; i < 64; i++) counts[i] = order[i] = 0;
                barriers(pool, buffers, (int64_t[]){20});
                for (int i = 0; i < 3; i++)
                    if (order[i * 8] != 20) return printf("barrier, run %d\n", n), 1;
                usleep(300);
            }
        }
        hr_pool_close(pool);
    }
    return 0;
}
#endif
