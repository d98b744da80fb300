/* Calls a kernel for a check: on stacks, and with its parallel iterations apart, where luck does not help it.
 *
 * A wrong kernel may be right because of what an earlier call has left on the stack, because of the bytes
 * that alignment leaves beside its arrays, or because its threads did not meet. So what lies below a call's
 * stack holds a value that changes from call to call, its frames lie at other places, canaries lie above
 * them, and iterations that threads may run at the same time start from the same memory.
 */
#include "tfb.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    STACK_BYTES = 1 << 15, /* filled below the calling frame of each thread */
    FRAME_BYTES = 1 << 12, /* of them once more before every iteration that runs apart */
    GAP_BYTES = 1 << 9,    /* of canaries above the frames of a body */
    STACK_ALIGNMENT = 16,  /* what a function may rely on, on x86-64 and aarch64 */
    PLACES = 4,            /* of frames: arrays of kernels are aligned to 64 bytes */
    PIECE_BYTES = 1 << 12  /* of written memory: what half of a loop leaves as it was is not copied */
};

/* As floats -1.7e38, 8.4e37 and 1.7e-30, as integers far below and above all sizes, as pointers nowhere: what a
 * minimum leaves out a maximum takes, and what makes one comparison true makes its opposite false. Indices are
 * multiplied by strides: eight times the last is above all sizes, twice the second has wrapped to below them. */
static const unsigned char STALE[] = {0xFE, 0x7E, 0x0E};

/* Of the call that is running; there is one at a time. */
static struct {
    unsigned number; /* of the call, from 0 */
    bool strayed;    /* onto the canaries */
    bool met;        /* iterations wrote different values to one place */
    const tfb_written *written;
    int32_t n_written;
    int32_t partition;
    unsigned char *before, *first; /* what is written, when a loop began and when its first half has run */
    unsigned char *changed;        /* whether the first half changed a piece: only then `first` has it */
} call;

static __attribute__((noinline)) void fill_stack(size_t size) {
    unsigned char bytes[size];
    memset(bytes, STALE[call.number % sizeof STALE], size);
    __asm__ volatile("" : : "r"(bytes) : "memory"); /* the stores are wanted although nothing reads them */
}

static void fill_stacks(void *closure, int64_t begin, int64_t end) {
    (void)closure, (void)begin, (void)end;
    fill_stack(STACK_BYTES);
}

/* Runs a body directly below canaries, at one of PLACES. */
static __attribute__((noinline)) void run_below_canaries(tfb_body body, void *closure, int64_t index) {
    size_t size = GAP_BYTES + STACK_ALIGNMENT * (((size_t)index + call.number) % PLACES);
    unsigned char gap[size], canary = STALE[call.number % sizeof STALE];
    memset(gap, canary, size);
    __asm__ volatile("" : : "r"(gap) : "memory");
    body(closure, index, index + 1);
    __asm__ volatile("" : : "r"(gap) : "memory");
    for (size_t i = 0; i < size; i++) call.strayed |= gap[i] != canary;
}

static void copy_written(void) {
    unsigned char *to = call.before;
    for (int32_t i = 0; i < call.n_written; to += call.written[i++].bytes)
        memcpy(to, call.written[i].start, (size_t)call.written[i].bytes);
}

static int64_t pieces(int64_t bytes) {
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

struct piece {
    unsigned char *now, *before, *first, *changed;
    size_t size;
};

static void for_pieces(void (*run)(struct piece)) {
    struct piece piece = {NULL, call.before, call.first, call.changed, 0};
    for (int32_t i = 0; i < call.n_written; i++) {
        piece.now = call.written[i].start;
        for (int64_t left = call.written[i].bytes; left > 0; left -= PIECE_BYTES) {
            piece.size = (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
            run(piece);
            piece.now += piece.size, piece.before += piece.size, piece.first += piece.size, piece.changed++;
        }
    }
}

/* Keeps what the first half of the iterations has written, and puts back what was there before. */
static void keep_first(struct piece of) {
    *of.changed = memcmp(of.now, of.before, of.size) != 0;
    if (!*of.changed) return;
    memcpy(of.first, of.now, of.size);
    memcpy(of.now, of.before, of.size);
}

/* Has every byte hold what either half of the iterations has written there, and notes where both have. */
static void merge(struct piece of) {
    unsigned char met = 0;
    if (!*of.changed) return;
    for (size_t j = 0; j < of.size; j++) {
        unsigned char old = of.before[j], one = of.first[j], other = of.now[j];
        met |= (unsigned char)(one != old) & (unsigned char)(other != old) & (unsigned char)(one != other);
        of.now[j] = other != old ? other : one;
    }
    call.met |= met != 0;
}

/* The iterations whose number has the bit, or has it not, from the last to the first. */
static void run_half(tfb_body body, void *closure, int64_t extent, int32_t bit, int64_t value) {
    for (int64_t i = extent; i-- > 0;) {
        if ((i >> bit & 1) != value) continue;
        fill_stack(FRAME_BYTES);
        run_below_canaries(body, closure, i);
    }
}

/* A parallel loop whose iterations may all run at the same time does the same when half of them do not see
 * what the others write. Halves differ by one bit of the iteration: even partitions 0, 2, ... take bits from
 * the lowest on (neighbours), odd ones from the highest on (the chunks of two threads). */
static void run_apart(tfb_body body, void *closure, int64_t extent) {
    int32_t bits = extent > 1 ? 64 - __builtin_clzll((unsigned long long)extent - 1) : 1;
    int32_t bit = call.partition / 2 % bits;
    if (call.partition % 2) bit = bits - 1 - bit;
    tfb_run_by(NULL); /* what a body runs in parallel belongs to its iteration */
    copy_written();
    run_half(body, closure, extent, bit, 1);
    for_pieces(keep_first);
    run_half(body, closure, extent, bit, 0);
    for_pieces(merge);
    tfb_run_by(run_apart);
}

struct kernel_call {
    tfb_kernel kernel;
    void *const *buffers;
    void *workspace;
    struct tfb_pool *pool;
    int32_t status;
};

static void run_kernel(void *closure, int64_t begin, int64_t end) {
    struct kernel_call *of = closure;
    (void)begin, (void)end;
    of->status = of->kernel(of->buffers, of->workspace, of->pool);
}

int32_t tfb_call(tfb_kernel kernel, void *const *buffers, void *workspace, struct tfb_pool *pool,
                 const tfb_written *written, int32_t n_written, int32_t partition) {
    if (!kernel || n_written < 0 || (n_written > 0 && !written) || partition < 0) return TFB_ERROR_ARGUMENT;
    struct kernel_call of = {kernel, buffers, workspace, n_written ? NULL : pool, 0};
    unsigned char *copies = NULL;
    size_t bytes = 0, count = 0;
    for (int32_t i = 0; i < n_written; i++) {
        bytes += (size_t)written[i].bytes;
        count += (size_t)pieces(written[i].bytes);
    }
    if (n_written && !(copies = malloc(2 * bytes + count + 1))) return TFB_ERROR_MEMORY;
    call.strayed = call.met = false;
    call.written = written, call.n_written = n_written, call.partition = partition;
    call.before = copies, call.first = copies ? copies + bytes : NULL;
    call.changed = copies ? copies + 2 * bytes : NULL;
    tfb_parallel_for(of.pool, fill_stacks, NULL, tfb_pool_threads(of.pool));
    tfb_run_by(n_written ? run_apart : NULL);
    run_below_canaries(run_kernel, &of, 0);
    tfb_run_by(NULL);
    free(copies);
    call.number++;
    return of.status ? of.status : call.strayed ? TFB_ERROR_STRAYED : call.met ? TFB_ERROR_MET : 0;
}
