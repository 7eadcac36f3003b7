/* The thread pool; headrace_pool.h says how it is used.
 *
 *     gate    open?  threads inside   number of the run
 *             1 bit      31 bits          32 bits            one atomic word
 *
 * A run is opened by a new number; workers that see it go in, for as long as it is open; the calling thread does its
 * part, closes the gate and waits until nobody is inside. Whoever waits spins for a bounded time, then sleeps: on `bell`
 * for a new run, on `epoch` for the end of a stage, of a barrier or of a run.
 */
#define _GNU_SOURCE
#include "headrace_pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__linux__)
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef HR_NO_FUTEX /* for a test of the other way */
#define HR_FUTEX
#endif
#endif

#define OPEN ((uint64_t)1 << 63)
#define INSIDE ((uint64_t)1 << 32)
#define LINE 64

typedef struct {
    pthread_t thread;
    struct pool *pool;
    int index;
    _Atomic int cpu; /* the one it is pinned to, -1: none */
} worker;

typedef struct pool {
    hr_pool face;
    alignas(LINE) hr_sync sync;
    hr_entry entry;
    void *context;
    int64_t capacity; /* of sync.stages */
    int64_t spin_ns, idle_ns;
    int started; /* workers */
    worker *workers;
    alignas(LINE) _Atomic uint64_t gate;
    _Atomic uint64_t joined;  /* workers that took part, in the upper half */
    _Atomic uint64_t running; /* 1 in the upper half from start() to finish(), which may be called by two threads */
    alignas(LINE) _Atomic uint32_t epoch, sleepers;
    alignas(LINE) _Atomic uint32_t bell, idle;
    _Atomic uint32_t stop;
#ifndef HR_FUTEX
    pthread_mutex_t lock;
    pthread_cond_t changed;
#endif
} pool;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Sleeping until a word changes. */

#ifdef HR_FUTEX
static void sleep_on(pool *p, _Atomic uint32_t *word, uint32_t value) {
    (void)p;
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void change(pool *p, _Atomic uint32_t *word) {
    (void)p;
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
#else
static void sleep_on(pool *p, _Atomic uint32_t *word, uint32_t value) {
    pthread_mutex_lock(&p->lock);
    while (atomic_load(word) == value) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
static void change(pool *p, _Atomic uint32_t *word) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(word, 1);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}
#endif

static pool *pool_of(hr_sync *sync) { return (pool *)((char *)sync - offsetof(pool, sync)); }

static void wake_all(hr_sync *sync) {
    pool *p = pool_of(sync);
    change(p, &p->epoch);
}

static int is(_Atomic uint64_t *word, uint32_t upper) {
    return hr_upper(atomic_load_explicit(word, memory_order_acquire)) == upper;
}

static void wait_for(hr_sync *sync, _Atomic uint64_t *word, uint32_t upper) {
    pool *p = pool_of(sync);
    /* The first rounds without looking at the clock. */
    for (int i = 0; i < 64; i++) {
        if (is(word, upper)) return;
        hr_relax();
    }
    for (int64_t end = now_ns() + p->spin_ns; now_ns() < end;)
        for (int i = 0; i < 16; i++) {
            if (is(word, upper)) return;
            hr_relax();
        }
    atomic_fetch_add(&p->sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&p->epoch);
        if (hr_upper(atomic_load(word)) == upper) break;
        sleep_on(p, &p->epoch, seen);
    }
    atomic_fetch_sub(&p->sleepers, 1);
}

/* What rounding and denormals do is a state of each thread. Results must not depend on who computes them: every thread
 * computes in the default state, whatever another library has made of it. */

#if defined(__x86_64__)
typedef uint32_t arithmetic;
static arithmetic set_arithmetic(arithmetic wanted) {
    uint32_t old = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(wanted);
    return old;
}
#define STANDARD 0x1f80u
#elif defined(__aarch64__)
typedef uint64_t arithmetic;
static arithmetic set_arithmetic(arithmetic wanted) {
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(wanted));
    return old;
}
#define STANDARD 0
#else
typedef int arithmetic;
static arithmetic set_arithmetic(arithmetic wanted) { return wanted; }
#define STANDARD 0
#endif

static void take_part(pool *p, int index) {
    arithmetic old = set_arithmetic(STANDARD);
    p->entry(p->context, index, p->face.threads, &p->sync);
    set_arithmetic(old);
}

/* Go in if the gate is open, and set `seen` to the run that this is, or to the one that was missed. */
static int go_in(pool *p, uint32_t *seen) {
    uint64_t gate = atomic_load(&p->gate);
    while (gate & OPEN && !atomic_compare_exchange_weak(&p->gate, &gate, gate + INSIDE)) {}
    *seen = (uint32_t)gate;
    return (gate & OPEN) != 0;
}

static void go_out(pool *p) {
    atomic_fetch_add(&p->joined, INSIDE);
    atomic_fetch_sub(&p->gate, INSIDE);
    if (atomic_load(&p->sleepers)) wake_all(&p->sync);
}

/* Returns when there is a run that this worker has not seen, or the end. */
static void idle(pool *p, uint32_t seen) {
    for (int64_t end = now_ns() + p->idle_ns; now_ns() < end;)
        for (int i = 0; i < 16; i++) {
            if ((uint32_t)atomic_load_explicit(&p->gate, memory_order_acquire) != seen) return;
            hr_relax();
        }
    atomic_fetch_add(&p->idle, 1);
    for (;;) {
        uint32_t bell = atomic_load(&p->bell);
        if ((uint32_t)atomic_load(&p->gate) != seen || atomic_load(&p->stop)) break;
        sleep_on(p, &p->bell, bell);
    }
    atomic_fetch_sub(&p->idle, 1);
}

static void pin(worker *w) {
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    int cpu = w->cpu;
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
    if (cpu < 0 || pthread_setaffinity_np(pthread_self(), sizeof set, &set)) w->cpu = -1;
#else
    w->cpu = -1;
#endif
}

static void *work(void *argument) {
    worker *w = argument;
    pool *p = w->pool;
    pin(w);
    for (uint32_t seen = 0; !atomic_load(&p->stop);) {
        idle(p, seen);
        if (!go_in(p, &seen)) continue;
        take_part(p, w->index);
        go_out(p);
    }
    return NULL;
}

static void lock(pool *p) {
    for (;;) {
        uint64_t no = 0;
        if (atomic_compare_exchange_strong(&p->running, &no, (uint64_t)1 << 32)) return;
        wait_for(&p->sync, &p->running, 0);
    }
}

static void unlock(pool *p) {
    atomic_store(&p->running, 0);
    if (atomic_load(&p->sleepers)) wake_all(&p->sync);
}

static void make_room(pool *p, int64_t stages) {
    if (stages > p->capacity) {
        void *fresh = NULL;
        int64_t capacity = (stages + 511) / 512 * 512;
        if (posix_memalign(&fresh, LINE, (size_t)capacity * sizeof(uint64_t))) abort();
        free((void *)p->sync.stages);
        p->sync.stages = fresh;
        p->capacity = capacity;
    }
    if (stages) memset((void *)p->sync.stages, 0, (size_t)stages * sizeof(uint64_t));
    p->sync.stage_count = stages;
}

/* Nobody is inside while a run is prepared: the gate is closed, and the last run ended when it was empty. */
static void start(hr_pool *face, hr_entry entry, void *context, int64_t stages) {
    pool *p = (pool *)face;
    lock(p);
    make_room(p, stages);
    p->entry = entry;
    p->context = context;
    atomic_store_explicit(&p->sync.barrier, 0, memory_order_relaxed);
    atomic_store_explicit(&p->joined, 0, memory_order_relaxed);
    uint32_t number = (uint32_t)atomic_load(&p->gate) + 1;
    atomic_store(&p->gate, OPEN | number);
    if (atomic_load(&p->idle)) change(p, &p->bell);
}

static void end(pool *p, int everybody) {
    take_part(p, 0);
    if (everybody) wait_for(&p->sync, &p->joined, (uint32_t)p->started);
    if (hr_upper(atomic_fetch_and(&p->gate, ~OPEN) & ~OPEN)) wait_for(&p->sync, &p->gate, 0);
    unlock(p);
}

static void finish(hr_pool *face) { end((pool *)face, 0); }

static void run_all(hr_pool *face, hr_entry entry, void *context, int64_t stages) {
    start(face, entry, context, stages);
    end((pool *)face, 1);
}

/* What hr_pool_start began, for callers from outside of C. */
void hr_pool_join(hr_pool *face) { finish(face); }

/* The processor that a worker is pinned to, -1: none. */
int hr_pool_cpu(hr_pool *face, int index) { return atomic_load(&((pool *)face)->workers[index - 1].cpu); }

/* Stops the workers and frees the pool. */
void hr_pool_close(hr_pool *face) {
    pool *p = (pool *)face;
    if (atomic_load(&p->gate) & OPEN) finish(face);
    atomic_store(&p->stop, 1);
    atomic_fetch_add(&p->gate, 1); /* for those that spin */
    change(p, &p->bell);
    for (int i = 0; i < p->started; i++) pthread_join(p->workers[i].thread, NULL);
#ifndef HR_FUTEX
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
#endif
    free((void *)p->sync.stages);
    free(p->workers);
    free(p);
}

static int start_worker(pool *p, int index, int cpu) {
    worker *w = &p->workers[index - 1];
    w->pool = p;
    w->index = index;
    w->cpu = cpu;
    return pthread_create(&w->thread, NULL, work, w);
}

/* A pool of `threads` threads: the calling one, and workers. cpus[i] is where worker i + 1 is pinned, -1: nowhere.
 * spin_ns: how long to spin inside a run before sleeping; idle_ns: between runs. NULL, and errno, if there is no
 * memory or no thread to be had. */
hr_pool *hr_pool_open(int threads, const int32_t *cpus, int64_t spin_ns, int64_t idle_ns) {
    pool *p = NULL;
    if (threads < 1 || posix_memalign((void **)&p, LINE, sizeof *p)) {
        errno = threads < 1 ? EINVAL : ENOMEM;
        return NULL;
    }
    memset((void *)p, 0, sizeof *p);
    p->face = (hr_pool){HR_POOL_ABI, threads, start, finish, run_all};
    p->sync.sleepers = &p->sleepers;
    p->sync.wait = wait_for;
    p->sync.wake = wake_all;
    p->spin_ns = spin_ns;
    p->idle_ns = idle_ns;
#ifndef HR_FUTEX
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
#endif
    p->workers = calloc((size_t)threads, sizeof *p->workers);
    int failed = p->workers ? 0 : ENOMEM;
    /* Signals are for the threads that were there before. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < threads && !failed; i++) {
        failed = start_worker(p, i, cpus ? cpus[i - 1] : -1);
        if (!failed) p->started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!failed) return &p->face;
    hr_pool_close(&p->face);
    errno = failed;
    return NULL;
}
