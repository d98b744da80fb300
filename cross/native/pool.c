/* Thread pool for parallel loops that last microseconds.
 *
 * One loop at a time. The caller publishes the loop in the pool and raises `generation`; each worker sees the
 * new generation, runs its share and lowers `pending`; the caller runs share 0 and waits for pending == 0.
 * Shares are equal. Where cores differ in speed, as big and little ones do, a thread takes its share piece by
 * piece, and one that is done takes half of what another has not begun: work stealing of ranges (Cilk-5, Frigo et
 * al., PLDI 1998). Cores of one speed run their shares whole, because pieces cost 0.2 us a loop (on a Zen 4).
 * Whoever waits spins for a short while (a network's next loop usually follows within microseconds) and then
 * sleeps on a futex, so that an idle pool costs nothing.
 *
 * Memory order. The loop's fields are plain: the caller writes them before it raises `generation` and a
 * worker reads them after it has seen the raise (release/acquire), and the caller writes them again only after
 * it has seen pending == 0, which each worker reached by a read-modify-write after its last read of them
 * (the decrements form one release sequence, so the caller's acquire load synchronizes with all of them).
 * What is left of a share is one word, its first iteration and its end: a compare-and-swap that succeeds has
 * taken iterations that were there, whatever happened since the word was read. Only its own thread fills an empty
 * one. These accesses are relaxed: the loop's fields, and what its iterations wrote, go by the two words above.
 * Going to sleep is store-then-load on both sides ("I sleep", is there news? / news, does anyone sleep?),
 * which release/acquire alone would allow to miss each other; those four accesses are sequentially
 * consistent, so at least one side sees the other: the sleeper stays up or the other side wakes it. The futex
 * call compares the word once more under the kernel's lock, which closes the gap up to the actual sleep.
 */
#define _GNU_SOURCE
#include "tfb.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE 64

/* Longer than the gap between two kernels of a network, shorter than what a wake-up would save. */
#define SPIN_NS 50000

/* A thread whose share others may take from runs one in so many of the iterations left in it at a time. Counted
 * (benchmarks/counted/shares.py) for two cores beside four of 0.4 times their speed and 24 to 384 iterations, over
 * the least time: a quarter 1.08, a half 1.13, an eighth, which takes twice as many calls, 1.06. */
#define PIECES 4

/* Of a share that is run last part first: small beside the caches, and few calls. */
#define PARTS 16

/* Cores differ in speed if the fastest is faster than the slowest by more than one part in so many: less is what
 * the highest clocks of x86 cores of one kind differ by. */
#define DIFFERENCE 10

#ifndef CORES_FOLDER
#define CORES_FOLDER "/sys/devices/system/cpu" /* a folder a core */
#endif

struct worker {
    struct tfb_pool *pool;
    pthread_t thread;
    int32_t index;       /* 1 .. threads - 1; the caller is 0 */
    uint32_t generation; /* of the last loop this worker took part in */
};

/* The iterations that are left of a thread's share: first << 32 | end. */
struct share {
    alignas(CACHE_LINE) _Atomic uint64_t left;
};

/* Each cache line that one thread writes and another reads costs a transfer between cores. So what is written for
 * one reader is in one line, and apart from what others write. */
struct tfb_pool {
    /* What workers wait for, and the loop that they find then. */
    alignas(CACHE_LINE) _Atomic uint32_t generation;
    _Atomic int32_t sleeping; /* workers asleep, or about to be, on generation */
    int32_t threads;          /* that really run, the caller included */
    bool stop;                /* ends the workers instead of a loop */
    tfb_body body;
    void *closure;
    int64_t extent;
    bool pieces; /* shares are taken piece by piece, with help from others */
    _Atomic uint32_t pending_of_one; /* `pending` of a pool with one worker, which does not wait meanwhile */

    /* `pending` of others: workers that wait already, on the line above, would slow down those that lower it. */
    alignas(CACHE_LINE) _Atomic uint32_t pending_of_several;

    /* The caller's. */
    alignas(CACHE_LINE) _Atomic int32_t busy; /* 1 while a loop runs */
    _Atomic int32_t owner; /* process the workers belong to; -pid while that process starts them */

    /* Hardly ever written: every thread keeps these. */
    alignas(CACHE_LINE) _Atomic uint32_t *pending; /* what the caller waits for: workers that are not done */
    _Atomic int32_t caller_sleeps;
    int32_t wanted; /* threads asked for */
    int64_t spin_ns;
    pthread_t creator;
    cpu_set_t creator_cores; /* to give back */
    bool creator_pinned;
    int32_t n_cores;
    int32_t *cores;
    struct worker *workers; /* wanted - 1 of them */
    struct share *shares;   /* wanted of them */
    bool uneven;            /* cores differ in speed */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins until *word differs from `value` (wanted_equal false) or equals it (true); false when time ran out.
 * The acquire load that ends the wait pairs with the writer's release. */
static bool spin(_Atomic uint32_t *word, uint32_t value, bool wanted_equal, int64_t limit_ns) {
    int64_t end_ns = 0;
    for (uint32_t i = 1;; i++) {
        if ((atomic_load_explicit(word, memory_order_acquire) == value) == wanted_equal) return true;
        relax();
        if (i % 64) continue; /* the clock costs more than the load */
        int64_t now = now_ns();
        if (!end_ns) end_ns = now + limit_ns;
        if (now >= end_ns) return false;
    }
}

static bool pin(const struct tfb_pool *pool, int32_t thread) {
    if (pool->n_cores == 0) return false;
    int32_t core = pool->cores[thread % pool->n_cores];
    if (core < 0 || core >= CPU_SETSIZE) return false;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0; /* 0: the calling thread */
}

/*
 * How many cores the pool's threads will run on. Named ones are tried by the calling thread, which must get its
 * own back afterwards: what it may run on now says nothing of them, it may be pinned by an earlier pool.
 */
static int32_t cores_at_hand(const struct tfb_pool *pool) {
    cpu_set_t used;
    CPU_ZERO(&used);
    for (int32_t i = 0; i < pool->n_cores; i++)
        if (pin(pool, i)) CPU_SET(pool->cores[i], &used);
    int32_t named = CPU_COUNT(&used);
    return named > 0 ? named : CPU_COUNT(&pool->creator_cores);
}

/* The number in a file of a core; 0 where there is none. */
static int64_t fact(int32_t core, const char *file) {
    char path[128], digits[20]; /* 19 digits fit an int64_t */
    snprintf(path, sizeof path, CORES_FOLDER "/cpu%d/%s", (int)core, file);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return 0;
    ssize_t length = read(descriptor, digits, sizeof digits - 1);
    close(descriptor);
    int64_t found = 0;
    for (ssize_t i = 0; i < length && digits[i] >= '0' && digits[i] <= '9'; i++)
        found = 10 * found + (digits[i] - '0');
    return found;
}

/* Whether the named cores differ in the capacity that Linux knows of them or in their highest clock. */
static bool cores_differ(const struct tfb_pool *pool) {
    static const char *const files[] = {"cpu_capacity", "cpufreq/cpuinfo_max_freq"};
    for (size_t file = 0; file < sizeof files / sizeof *files; file++) {
        int64_t least = INT64_MAX, most = 0;
        for (int32_t i = 0; i < pool->n_cores && i < pool->wanted; i++) {
            int64_t found = fact(pool->cores[i], files[file]);
            if (found < least) least = found;
            if (found > most) most = found;
        }
        if (least > 0 && most - least > least / DIFFERENCE) return true;
    }
    return false;
}

static _Atomic(tfb_loop) run_by;
static _Atomic int32_t last_first;

void tfb_run_by(tfb_loop loop) {
    atomic_store(&run_by, loop);
}

void tfb_run_last_first(int32_t turned) {
    atomic_store_explicit(&last_first, turned, memory_order_relaxed);
}

/* Relaxed, and read by every thread for itself: results are the same in either order. */
static bool is_turned(void) {
    return atomic_load_explicit(&last_first, memory_order_relaxed);
}

static void run_range(tfb_body body, void *closure, int64_t begin, int64_t end) {
    int64_t part = end - begin;
    if (is_turned()) part = (part + PARTS - 1) / PARTS;
    for (int64_t to = end; to > begin; to -= part) body(closure, to - part > begin ? to - part : begin, to);
}

/* Where the share of a thread begins: the first extent % threads shares are one longer. */
static int64_t first_of(const struct tfb_pool *pool, int32_t thread) {
    int64_t length = pool->extent / pool->threads, longer = pool->extent % pool->threads;
    return thread * length + (thread < longer ? thread : longer);
}

static uint64_t packed(uint32_t begin, uint32_t end) {
    return (uint64_t)begin << 32 | end;
}

/* Takes one in `of` of the iterations left in a share, at least one, from its end or its beginning. */
static bool take(struct share *share, bool from_end, uint32_t of, uint32_t *begin, uint32_t *end) {
    uint64_t seen = atomic_load_explicit(&share->left, memory_order_relaxed);
    for (;;) {
        uint32_t first = (uint32_t)(seen >> 32), last = (uint32_t)seen;
        if (first >= last) return false;
        uint32_t count = (last - first - 1) / of + 1;
        *begin = from_end ? last - count : first;
        *end = *begin + count;
        uint64_t left = from_end ? packed(first, *begin) : packed(*end, last);
        if (atomic_compare_exchange_weak_explicit(&share->left, &seen, left, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    }
}

/* Takes half of what another thread has left, runs a piece of it and keeps the rest as this thread's share, so
 * that each time something is done. False where no thread has anything left. */
static bool help(struct tfb_pool *pool, int32_t thread, bool turned) {
    for (int32_t next = 1; next < pool->threads; next++) {
        uint32_t begin, end;
        if (!take(&pool->shares[(thread + next) % pool->threads], !turned, 2, &begin, &end)) continue;
        uint32_t piece = (end - begin - 1) / PIECES + 1;
        uint64_t rest = turned ? packed(begin, end - piece) : packed(begin + piece, end);
        atomic_store_explicit(&pool->shares[thread].left, rest, memory_order_relaxed);
        pool->body(pool->closure, turned ? end - piece : begin, turned ? end : begin + piece);
        return true;
    }
    return false;
}

/* What a thread does of a loop. */
static void run_share(struct tfb_pool *pool, int32_t thread) {
    if (!pool->pieces) {
        run_range(pool->body, pool->closure, first_of(pool, thread), first_of(pool, thread + 1));
        return;
    }
    bool turned = is_turned();
    do {
        uint32_t begin, end;
        while (take(&pool->shares[thread], turned, turned ? PARTS : PIECES, &begin, &end))
            pool->body(pool->closure, begin, end);
    } while (help(pool, thread, turned));
}

static void wait_for_loop(struct worker *worker) {
    struct tfb_pool *pool = worker->pool;
    uint32_t seen = worker->generation;
    while (!spin(&pool->generation, seen, false, pool->spin_ns)) {
        atomic_fetch_add(&pool->sleeping, 1);           /* seq_cst: "I sleep" ... */
        if (atomic_load(&pool->generation) == seen)     /* ... is there news? */
            futex_wait(&pool->generation, seen);
        atomic_fetch_sub(&pool->sleeping, 1);
    }
    worker->generation = seen + 1; /* the next loop starts only when all have finished this one */
}

static void *work(void *argument) {
    struct worker *worker = argument;
    struct tfb_pool *pool = worker->pool;
    pin(pool, worker->index);
    for (;;) {
        wait_for_loop(worker);
        if (pool->stop) return NULL;
        run_share(pool, worker->index);
        /* seq_cst: news ... does anyone sleep? Also the release that hands the results to the caller. */
        if (atomic_fetch_sub(pool->pending, 1) == 1 && atomic_load(&pool->caller_sleeps))
            futex_wake(pool->pending, 1);
    }
}

/* Publishes the fields written so far to the workers. */
static void raise_generation(struct tfb_pool *pool) {
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleeping) > 0) futex_wake(&pool->generation, pool->threads);
}

static void wait_for_workers(struct tfb_pool *pool) {
    if (spin(pool->pending, 0, true, pool->spin_ns)) return;
    atomic_store(&pool->caller_sleeps, 1);
    for (uint32_t left; (left = atomic_load(pool->pending)) != 0;) futex_wait(pool->pending, left);
    atomic_store(&pool->caller_sleeps, 0);
}

/* Starts the workers; as many as the system allows. Everything they share is reset first, because after a
 * fork the memory still says what the parent's workers were doing. */
static void start_workers(struct tfb_pool *pool) {
    sigset_t all, before;
    atomic_store(&pool->generation, 0);
    atomic_store(&pool->sleeping, 0);
    atomic_store(pool->pending, 0);
    atomic_store(&pool->caller_sleeps, 0);
    pool->stop = false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* workers inherit it: signals go to the application */
    int32_t index = 1;
    for (; index < pool->wanted; index++) {
        struct worker *worker = &pool->workers[index - 1];
        *worker = (struct worker){.pool = pool, .index = index};
        if (pthread_create(&worker->thread, NULL, work, worker) != 0) break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pool->threads = index;
}

/* True when the pool has workers in this process; starts them after a fork. False for a second thread that
 * arrives while the first still starts them: it runs its loop alone. */
static bool has_workers(struct tfb_pool *pool) {
    int32_t self = getpid(), owner = atomic_load_explicit(&pool->owner, memory_order_acquire);
    if (owner == self) return true;
    if (owner == -self || !atomic_compare_exchange_strong(&pool->owner, &owner, -self)) return false;
    atomic_store(&pool->busy, 0); /* may have been set in the parent by a thread that is not in this process */
    start_workers(pool);
    atomic_store_explicit(&pool->owner, self, memory_order_release);
    return true;
}

int32_t tfb_abi_version(void) {
    return TFB_ABI_VERSION;
}

static void free_all(struct tfb_pool *pool) {
    free(pool->cores);
    free(pool->workers);
    free(pool->shares);
    free(pool);
}

struct tfb_pool *tfb_pool_create(int32_t threads, const int32_t *cores, int32_t n_cores) {
    if (threads < 1 || n_cores < 0 || (n_cores > 0 && !cores)) return NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, CACHE_LINE, sizeof(struct tfb_pool)) != 0) return NULL;
    struct tfb_pool *pool = memset(memory, 0, sizeof *pool);
    pool->wanted = threads;
    pool->pending = threads == 2 ? &pool->pending_of_one : &pool->pending_of_several;
    pool->n_cores = n_cores;
    pool->cores = calloc((size_t)n_cores + 1, sizeof *pool->cores);
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    pool->shares = aligned_alloc(CACHE_LINE, (size_t)threads * sizeof *pool->shares);
    if (!pool->cores || !pool->workers || !pool->shares) {
        free_all(pool);
        return NULL;
    }
    if (n_cores) memcpy(pool->cores, cores, (size_t)n_cores * sizeof *cores);
    pool->uneven = threads > 1 && cores_differ(pool);

    /* With more threads than cores a spinning thread holds up the one it waits for. */
    bool known = sched_getaffinity(0, sizeof pool->creator_cores, &pool->creator_cores) == 0;
    pool->spin_ns = !known || threads <= cores_at_hand(pool) ? SPIN_NS : 0;
    if (known) sched_setaffinity(0, sizeof pool->creator_cores, &pool->creator_cores);
    pool->creator = pthread_self();
    start_workers(pool); /* before pinning this thread: a worker whose core is refused stays free to roam */
    pool->creator_pinned = known && pin(pool, 0);
    atomic_store(&pool->owner, getpid());
    return pool;
}

void tfb_pool_destroy(struct tfb_pool *pool) {
    if (!pool) return;
    if (atomic_load(&pool->owner) == getpid()) { /* after a fork there may be nobody to stop */
        pool->stop = true;
        raise_generation(pool);
        for (int32_t i = 0; i < pool->threads - 1; i++) pthread_join(pool->workers[i].thread, NULL);
    }
    if (pool->creator_pinned && pthread_equal(pool->creator, pthread_self()))
        sched_setaffinity(0, sizeof pool->creator_cores, &pool->creator_cores);
    free_all(pool);
}

int32_t tfb_pool_threads(const struct tfb_pool *pool) {
    return pool ? pool->threads : 1;
}

int32_t tfb_pool_spins(const struct tfb_pool *pool) {
    return pool && pool->spin_ns > 0;
}

int32_t tfb_parallel_for(struct tfb_pool *pool, tfb_body body, void *closure, int64_t extent) {
    if (extent <= 0) return 0;
    tfb_loop loop = atomic_load_explicit(&run_by, memory_order_relaxed);
    if (loop) {
        loop(body, closure, extent);
        return 0;
    }
    /* Acquire on `busy`: the last loop's caller released it after its workers were done with the fields. */
    if (!pool || pool->wanted == 1 || extent == 1 || !has_workers(pool) ||
        atomic_exchange_explicit(&pool->busy, 1, memory_order_acquire)) {
        run_range(body, closure, 0, extent);
        return 0;
    }
    pool->body = body;
    pool->closure = closure;
    pool->extent = extent;
    pool->pieces = pool->uneven && extent > pool->threads && extent <= UINT32_MAX;
    for (int32_t i = 0; pool->pieces && i < pool->threads; i++) {
        uint64_t share = packed((uint32_t)first_of(pool, i), (uint32_t)first_of(pool, i + 1));
        atomic_store_explicit(&pool->shares[i].left, share, memory_order_relaxed);
    }
    atomic_store_explicit(pool->pending, (uint32_t)(pool->threads - 1), memory_order_relaxed);
    raise_generation(pool);
    run_share(pool, 0);
    wait_for_workers(pool);
    atomic_store_explicit(&pool->busy, 0, memory_order_release);
    return 0;
}
