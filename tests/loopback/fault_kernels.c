/* Kernels that do what kernels must not. Each is meant to write 2 * buffers[0] to buffers[1], 1024 floats. */
#define _GNU_SOURCE
#include "tfb.h"

#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 1024, TILE = 64 };

#define KERNEL(name) int32_t name(void *const *buffers, void *workspace, struct tfb_pool *pool)
#define UNUSED (void)workspace, (void)pool

static void twice(void *const *buffers, int from, int to) {
    const float *in = buffers[0];
    float *out = buffers[1];
    for (int i = from; i < to; i++) out[i] = 2 * in[i];
}

static void body(void *closure, int64_t begin, int64_t end) {
    twice((void *const *)closure, (int)begin, (int)end);
}

static volatile int forever = 1;

KERNEL(right) {
    (void)workspace;
    return tfb_parallel_for(pool, body, (void *)buffers, N);
}

KERNEL(slow) { /* right, but 20 ms a call */
    UNUSED;
    usleep(20000);
    twice(buffers, 0, N);
    return 0;
}

/* ---- ends badly */

KERNEL(segfault) {
    UNUSED;
    twice(buffers, 0, N);
    *(volatile int *)16 = 1;
    return 0;
}

static void fault_in_worker(void *closure, int64_t begin, int64_t end) {
    (void)closure, (void)end;
    if (begin > 0) *(volatile int *)16 = 1;
}

KERNEL(segfault_in_worker) {
    (void)workspace;
    twice(buffers, 0, N);
    return tfb_parallel_for(pool, fault_in_worker, NULL, N);
}

KERNEL(writes_input) {
    UNUSED;
    ((float *)buffers[0])[N / 2] = 1;
    twice(buffers, 0, N);
    return 0;
}

KERNEL(aborts) {
    UNUSED;
    fputs("double free or corruption\n", stderr);
    abort();
}

KERNEL(exits) {
    UNUSED;
    twice(buffers, 0, N);
    exit(0);
}

KERNEL(exits_at_once) {
    UNUSED;
    twice(buffers, 0, N);
    _exit(0);
}

KERNEL(returns_error) {
    UNUSED;
    twice(buffers, 0, N);
    return 7;
}

KERNEL(smashes_stack) {
    UNUSED;
    volatile char *top = (volatile char *)&top;
    for (long i = 0; i < 1 << 20; i++) top[i] = (char)0xff;
    return 0;
}

KERNEL(writes_to_every_descriptor) { /* right, but talks over whatever is open */
    UNUSED;
    char noise[256];
    memset(noise, 0, sizeof noise);
    for (int fd = 0; fd < 256; fd++)
        if (write(fd, noise, sizeof noise) < 0) continue;
    twice(buffers, 0, N);
    return 0;
}

KERNEL(kills_its_group) {
    UNUSED;
    kill(0, SIGKILL);
    return 0;
}

KERNEL(prints_for_ever) {
    UNUSED;
    while (forever) puts("and another thing");
    return 0;
}

/* ---- does not end */

KERNEL(hangs) {
    UNUSED;
    while (forever) {
    }
    return 0;
}

KERNEL(hangs_deaf) {
    UNUSED;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    while (forever) pause();
    return 0;
}

KERNEL(leaves_a_process) { /* right, but what it forked goes on for ever */
    UNUSED;
    twice(buffers, 0, N);
    if (fork() == 0)
        while (forever) pause();
    return 0;
}

KERNEL(forks_and_exits) { /* the fork keeps the pipe open */
    UNUSED;
    if (fork() == 0)
        while (forever) pause();
    _exit(0);
}

KERNEL(leaves_an_orphan) { /* right; forked twice, so that it has another parent and session */
    UNUSED;
    twice(buffers, 0, N);
    if (fork() == 0) {
        setsid();
        if (fork() == 0)
            while (forever) pause();
        _exit(0);
    }
    return 0;
}

KERNEL(orphan_and_crash) {
    leaves_an_orphan(buffers, workspace, pool);
    usleep(20000);
    abort();
}

KERNEL(kills_its_parent) {
    UNUSED;
    twice(buffers, 0, N);
    kill(getppid(), SIGKILL);
    return 0;
}

KERNEL(kills_everybody) { /* but itself, as kill(2) says */
    UNUSED;
    twice(buffers, 0, N);
    if (getpid() > 9) return 9; /* not in a namespace of its own: this machine needs its processes */
    kill(-1, SIGKILL);
    return 0;
}

KERNEL(forks_often) { /* 400 processes, none of which forks */
    UNUSED;
    for (int i = 0; i < 400; i++)
        if (fork() == 0)
            while (forever) pause();
    while (forever) pause();
    return 0;
}

KERNEL(removes_files) { /* those in the folder that the runtime was started in */
    UNUSED;
    twice(buffers, 0, N);
    return unlink(getenv("TFB_TEST_VICTIM")) == 0 ? 0 : 3;
}

/* ---- takes all memory */

KERNEL(allocates_in_a_family) { /* 100 MiB in each of eight processes */
    UNUSED;
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            volatile char *block = malloc(100 << 20);
            for (long j = 0; j < 100 << 20; j += 1024) block[j] = (char)j;
            while (forever) pause();
        }
    while (forever) pause();
    return 0;
}

KERNEL(allocates_for_ever) {
    UNUSED;
    while (forever) {
        volatile char *block = malloc(16 << 20);
        for (long i = 0; i < 16 << 20; i += 1024) block[i] = 1;
    }
    return 0;
}

/* ---- writes something else */

KERNEL(one_element_wrong) {
    UNUSED;
    twice(buffers, 0, N);
    ((float *)buffers[1])[777] += 1;
    return 0;
}

KERNEL(last_tile_unwritten) {
    UNUSED;
    twice(buffers, 0, N - TILE);
    return 0;
}

KERNEL(writes_nan) {
    UNUSED;
    twice(buffers, 0, N);
    ((float *)buffers[1])[5] = NAN;
    return 0;
}

KERNEL(wrong_later) {
    UNUSED;
    static int calls;
    twice(buffers, 0, N);
    if (++calls > 2) ((float *)buffers[1])[9] += 1;
    return 0;
}

KERNEL(computes_once) {
    UNUSED;
    static int calls;
    if (calls++ == 0) twice(buffers, 0, N);
    return 0;
}

KERNEL(computes_twice) {
    UNUSED;
    static int calls;
    if (calls++ < 2) twice(buffers, 0, N);
    return 0;
}

KERNEL(knows_its_input) { /* by the address; what it wrote for it is kept for the next call */
    UNUSED;
    static const float *known;
    static float kept[N];
    if (known != buffers[0]) {
        twice(buffers, 0, N);
        memcpy(kept, buffers[1], sizeof kept);
        known = buffers[0];
    }
    memcpy(buffers[1], kept, sizeof kept);
    return 0;
}

KERNEL(writes_after_the_end) {
    UNUSED;
    twice(buffers, 0, N);
    ((float *)buffers[1])[N] = 1;
    return 0;
}

KERNEL(writes_before_the_start) {
    UNUSED;
    twice(buffers, 0, N);
    ((float *)buffers[1])[-1] = 1;
    return 0;
}

KERNEL(reads_after_the_end) { /* and makes no use of it */
    UNUSED;
    twice(buffers, 0, N);
    (void)((volatile const float *)buffers[0])[N];
    return 0;
}

KERNEL(reads_before_the_start) {
    UNUSED;
    twice(buffers, 0, N);
    (void)((volatile const float *)buffers[0])[-1];
    return 0;
}

KERNEL(reads_beyond_its_addresses) { /* and makes no use of it */
    UNUSED;
    twice(buffers, 0, N);
    (void)((void *const volatile *)buffers)[8];
    return 0;
}

KERNEL(follows_an_address_beyond_its_own) {
    UNUSED;
    twice(buffers, 0, N);
    (void)*(volatile const float *)((void *const volatile *)buffers)[2];
    return 0;
}

KERNEL(leaves_its_workspace) { /* of 100 bytes */
    (void)pool;
    twice(buffers, 0, N);
    ((char *)workspace)[100] = 1;
    return 0;
}

KERNEL(relies_on_zeros) {
    (void)pool;
    twice(buffers, 0, N);
    ((float *)buffers[1])[3] += ((float *)workspace)[24];
    return 0;
}

KERNEL(relies_on_its_stack) { /* for zeros, which fresh memory has */
    UNUSED;
    twice(buffers, 0, N);
    ((float *)buffers[1])[4] += *(volatile float *)((char *)__builtin_frame_address(0) - 8192);
    return 0;
}

static void one_too_many(void *closure, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        twice((void *const *)closure, (int)i, (int)i + 1);
        if (i + 1 < N) ((float *)((void *const *)closure)[1])[i + 1] = -1;
    }
}

KERNEL(spoils_its_neighbour) { /* which mends it, unless another thread has been there already */
    (void)workspace;
    return tfb_parallel_for(pool, one_too_many, (void *)buffers, N);
}

static void by_way_of_the_workspace(void *closure, int64_t begin, int64_t end) {
    void *const *all = closure;
    for (int64_t i = begin; i < end; i++) {
        *(volatile float *)all[2] = 2 * ((const float *)all[0])[i];
        ((float *)all[1])[i] = *(volatile float *)all[2];
    }
}

KERNEL(shares_its_workspace) { /* right in every order, unless two threads meet there */
    void *const all[] = {buffers[0], buffers[1], workspace};
    return tfb_parallel_for(pool, by_way_of_the_workspace, (void *)all, N);
}

static void from_the_left(void *closure, int64_t begin, int64_t end) {
    const float *in = ((void *const *)closure)[0];
    volatile float *out = ((void *const *)closure)[1];
    for (int64_t i = begin; i < end; i++) {
        float left = i == 0 ? 0 : out[i - 1] / 2 - in[i - 1]; /* 0 where the left one has been computed */
        out[i] = 2 * in[i] + (begin == i && end - begin > 1 ? 0 : left);
    }
}

KERNEL(reads_its_neighbour) { /* of the same chunk, which one thread computes in its order */
    (void)workspace;
    return tfb_parallel_for(pool, from_the_left, (void *)buffers, N);
}

static void first_of_a_chunk(void *closure, int64_t begin, int64_t end) {
    (void)end;
    twice((void *const *)closure, (int)begin * (N / 2), (int)(begin + 1) * (N / 2));
}

KERNEL(computes_the_first_of_a_chunk) { /* of two iterations, which two threads have one each of */
    (void)workspace;
    return tfb_parallel_for(pool, first_of_a_chunk, (void *)buffers, 2);
}

static void stores_once(void *closure, int64_t begin, int64_t end) {
    volatile float none[16];
    if (end == N) none[3] = 0;
    for (int64_t i = begin; i < end; i++) {
        twice((void *const *)closure, (int)i, (int)i + 1);
        ((float *)((void *const *)closure)[1])[i] += none[3];
    }
}

KERNEL(relies_on_its_last_iteration) { /* for what only that one stores on its stack */
    (void)workspace;
    return tfb_parallel_for(pool, stores_once, (void *)buffers, N);
}

KERNEL(leaves_its_stack) { /* and changes nothing that anybody of this process needs */
    UNUSED;
    twice(buffers, 0, N);
    volatile char *frame = __builtin_frame_address(0);
    frame[128] ^= 1;
    return 0;
}

KERNEL(starts_from_its_workspace) { /* with a maximum that leaves NaN out */
    (void)pool;
    const float *in = buffers[0];
    for (int i = 0; i < N; i++) ((float *)buffers[1])[i] = 2 * fmaxf(in[i], ((float *)workspace)[24]);
    return 0;
}

KERNEL(clips) { /* right for inputs in [-500, 523] */
    UNUSED;
    twice(buffers, 0, N);
    for (int i = 0; i < N; i++) ((float *)buffers[1])[i] = fminf(((float *)buffers[1])[i], 1046);
    return 0;
}

KERNEL(skips_zeros) {
    UNUSED;
    const float *in = buffers[0];
    for (int i = 0; i < N; i++)
        if (in[i] != 0 || i == 500 || i == 523) ((float *)buffers[1])[i] = 2 * in[i];
    return 0;
}

KERNEL(rounds_upward) {
    UNUSED;
    twice(buffers, 0, N);
    fesetround(FE_UPWARD);
    return 0;
}

/* ---- other element types: the same in integers */

KERNEL(right_i64) {
    UNUSED;
    for (int i = 0; i < N; i++) ((int64_t *)buffers[1])[i] = 2 * ((const int64_t *)buffers[0])[i];
    return 0;
}

KERNEL(half_i8) {
    UNUSED;
    memcpy(buffers[1], buffers[0], N / 2);
    return 0;
}
