/* The thread pool as generated code sees it.
 *
 * A run is a sequence of stages, and a stage a number of tasks that may be done in any order by any thread. Every
 * thread walks through the same stages; a loop over hr_claim is one stage, with the wait for its last task at the end:
 *
 *     static void step(void *context, int thread, int threads, hr_sync *sync) {
 *         hr_cursor at = hr_begin(sync);
 *         for (int64_t i; (i = hr_claim(&at, 48)) >= 0;) first(context, i);
 *         for (int64_t i; (i = hr_claim(&at, 16)) >= 0;) second(context, i);    // sees all that first() wrote
 *     }
 *     ...
 *     hr_pool_run(pool, step, &context, 2);
 *
 * A stage ends when its tasks are done, not when all threads have come: a thread that the system has taken off its
 * core between two tasks holds up nobody, and one that wakes up late skips what is done. So the number of threads that
 * take part may be anything from one to `threads`, and tasks must not depend on which thread does them.
 *
 * Outside of tasks, code may read `context` only. Runs do not nest.
 */
#ifndef HEADRACE_POOL_H
#define HEADRACE_POOL_H

#include <stdatomic.h>
#include <stdint.h>

#define HR_POOL_ABI 1

typedef struct hr_pool hr_pool;
typedef struct hr_sync hr_sync;
typedef void (*hr_entry)(void *context, int thread, int threads, hr_sync *sync);

struct hr_pool {
    int32_t abi;     /* HR_POOL_ABI */
    int32_t threads; /* the calling thread included */
    /* Function pointers, so that a library of generated code links to nothing. */
    void (*start)(hr_pool *pool, hr_entry entry, void *context, int64_t stages);
    void (*finish)(hr_pool *pool);
    void (*run_all)(hr_pool *pool, hr_entry entry, void *context, int64_t stages);
};

struct hr_sync {
    /* One word a stage: tasks done in the upper half, tasks claimed in the lower. */
    _Atomic uint64_t *stages;
    int64_t stage_count;
    _Atomic uint64_t barrier; /* barriers passed in the upper half, threads that wait in the lower */
    _Atomic uint32_t *sleepers;
    void (*wait)(hr_sync *sync, _Atomic uint64_t *word, uint32_t upper); /* until the upper half is `upper` */
    void (*wake)(hr_sync *sync);                                         /* all that sleep in wait() */
};

typedef struct {
    hr_sync *sync;
    int64_t stage;
    uint64_t holds; /* 1 while this thread works on a task */
} hr_cursor;

/* Run on the pool: the workers join as they wake up, the calling thread is thread 0. Returns when all is done.
 * `stages` is the number of stages that `entry` walks through, or more. */
static inline void hr_pool_run(hr_pool *pool, hr_entry entry, void *context, int64_t stages) {
    pool->start(pool, entry, context, stages);
    pool->finish(pool);
}

/* The two halves: between them the workers work and the calling thread does what it likes; then it joins. */
static inline void hr_pool_start(hr_pool *pool, hr_entry entry, void *context, int64_t stages) {
    pool->start(pool, entry, context, stages);
}
static inline void hr_pool_finish(hr_pool *pool) { pool->finish(pool); }

/* Run on every thread of the pool, whatever it takes to wake it: only here may hr_barrier be used. */
static inline void hr_pool_run_all(hr_pool *pool, hr_entry entry, void *context, int64_t stages) {
    pool->run_all(pool, entry, context, stages);
}

static inline void hr_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static inline uint32_t hr_upper(uint64_t word) { return (uint32_t)(word >> 32); }

static inline hr_cursor hr_begin(hr_sync *sync) { return (hr_cursor){sync, 0, 0}; }

/* The next task of this stage, 0 <= i < tasks; or -1 when all of them are done, by whomever, and the cursor has moved
 * on to the next stage. Asking for the next task says that the last one is done. All threads give the same `tasks`. */
static inline int64_t hr_claim(hr_cursor *at, int64_t tasks) {
    hr_sync *sync = at->sync;
    if (__builtin_expect(at->stage >= sync->stage_count, 0)) __builtin_trap(); /* more stages than announced */
    _Atomic uint64_t *stage = sync->stages + at->stage;
    uint64_t holds = at->holds;
    if (!holds && hr_upper(atomic_load_explicit(stage, memory_order_acquire)) == (uint32_t)tasks) {
        at->stage++;
        return -1;
    }
    /* Sequentially consistent, like the count of sleepers: of one that falls asleep and one that ends the stage, at
     * least one sees the other. */
    uint64_t before = atomic_fetch_add(stage, holds << 32 | 1);
    if ((int64_t)(uint32_t)before < tasks) {
        at->holds = 1;
        return (int64_t)(uint32_t)before;
    }
    at->holds = 0;
    at->stage++;
    if (hr_upper(before) + holds != (uint64_t)tasks)
        sync->wait(sync, stage, (uint32_t)tasks);
    else if (holds && atomic_load(sync->sleepers))
        sync->wake(sync);
    return -1;
}

/* Wait for all threads; only inside hr_pool_run_all. */
static inline void hr_barrier(hr_sync *sync, int threads) {
    uint64_t before = atomic_fetch_add(&sync->barrier, 1);
    uint32_t passed = hr_upper(before);
    if ((uint32_t)before + 1 != (uint32_t)threads) {
        sync->wait(sync, &sync->barrier, passed + 1);
        return;
    }
    atomic_store(&sync->barrier, (uint64_t)(passed + 1) << 32);
    if (atomic_load(sync->sleepers)) sync->wake(sync);
}

#endif
