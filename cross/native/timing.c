/* Times a kernel: no interpreter, no system call and no allocation between the two clock readings. */
#define _GNU_SOURCE
#include "tfb.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(tfb_timing) == 56, "the device runtime declares this structure too");

struct run {
    tfb_kernel kernel;
    void *const *buffers;
    void *workspace;
    struct tfb_pool *pool;
    unsigned char *flush; /* NULL: calls follow each other directly */
    size_t flush_bytes;
    unsigned char flush_value;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_s(double seconds) {
    struct timespec t;
    if (!(seconds > 0)) return;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

static bool call(const struct run *run) {
    return run->kernel(run->buffers, run->workspace, run->pool) == 0;
}

static void nothing(void *closure, int64_t begin, int64_t end) {
    (void)closure, (void)begin, (void)end;
}

/* Pushes what the kernel uses out of the caches, then wakes the workers, which fell asleep meanwhile. */
static void flush(struct run *run) {
    memset(run->flush, ++run->flush_value, run->flush_bytes);
    __asm__ volatile("" : : "r"(run->flush) : "memory"); /* the stores are wanted although nothing reads them */
    tfb_parallel_for(run->pool, nothing, NULL, tfb_pool_threads(run->pool));
}

/* Seconds that `number` calls take together; negative when one fails. */
static double repeat_s(struct run *run, int64_t number) {
    if (!run->flush) {
        double start_s = now_s();
        for (int64_t i = 0; i < number; i++)
            if (!call(run)) return -1;
        return now_s() - start_s;
    }
    double sum_s = 0;
    for (int64_t i = 0; i < number; i++) {
        flush(run);
        double start_s = now_s();
        if (!call(run)) return -1;
        sum_s += now_s() - start_s;
    }
    return sum_s;
}

/* Calls per repeat so that a repeat lasts min_repeat_s, judged by one that took `took_s`: at least twice as
 * many, at most max_number; 1.2: a little more than the estimate, so that one step is mostly enough. */
static int64_t grown(int64_t number, int64_t max_number, double took_s, double min_repeat_s) {
    double wanted = 2.0 * (double)number;
    if (took_s > 0) {
        double estimate = 1.2 * (double)number * min_repeat_s / took_s;
        if (estimate > wanted) wanted = estimate;
    }
    return wanted < (double)max_number ? (int64_t)wanted : max_number;
}

/* A first repeat may have been disturbed: only when the fastest of all that fit in so many shortest repeats is
 * too slow, the kernel is. */
enum { SHORTEST_REPEATS_BEFORE_GIVING_UP = 30 };

static bool beaten(const tfb_timing *timing, double fastest_s, double spent_s) {
    return timing->give_up_s > 0 && fastest_s > timing->give_up_s &&
           spent_s >= SHORTEST_REPEATS_BEFORE_GIVING_UP * timing->min_repeat_s;
}

static int32_t time_repeats(struct run *run, const tfb_timing *timing, double *seconds, int64_t *number_used) {
    double started_s = now_s(), fastest_s = 0;
    int64_t number = timing->number;
    int64_t max_number = timing->max_number > number ? timing->max_number : number;
    for (int32_t i = 0; i < timing->warmup; i++)
        if (!call(run)) return TFB_ERROR_KERNEL;
    for (int32_t done = 0; done < timing->repeat; done++) {
        if (done > 0 && timing->cooldown_s > 0) {
            sleep_s(timing->cooldown_s);
            if (!call(run)) return TFB_ERROR_KERNEL; /* the sleep put the workers and the clock down */
        }
        double took_s = repeat_s(run, number);
        while (took_s >= 0 && took_s < timing->min_repeat_s && number < max_number) {
            number = grown(number, max_number, took_s, timing->min_repeat_s);
            took_s = repeat_s(run, number);
        }
        if (took_s < 0) return TFB_ERROR_KERNEL;
        seconds[done] = took_s / (double)number;
        if (number_used) *number_used = number;
        if (done == 0 || seconds[done] < fastest_s) fastest_s = seconds[done];
        if (beaten(timing, fastest_s, now_s() - started_s)) return done + 1;
    }
    return timing->repeat;
}

int32_t tfb_time(tfb_kernel kernel, void *const *buffers, void *workspace, struct tfb_pool *pool,
                 const tfb_timing *timing, double *seconds, int64_t *number_used) {
    if (!kernel || !timing || !seconds || timing->number < 1 || timing->repeat < 1 || timing->warmup < 0 ||
        timing->flush_bytes < 0)
        return TFB_ERROR_ARGUMENT;
    struct run run = {.kernel = kernel, .buffers = buffers, .workspace = workspace, .pool = pool};
    if (timing->flush_bytes > 0) {
        run.flush_bytes = (size_t)timing->flush_bytes;
        run.flush = malloc(run.flush_bytes);
        if (!run.flush) return TFB_ERROR_MEMORY;
    }
    int32_t status = time_repeats(&run, timing, seconds, number_used);
    free(run.flush);
    return status;
}
