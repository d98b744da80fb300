/* The C side of every compiled CPU artifact: thread pool, timing loop, comparison of outputs.
 *
 * Start here. A kernel is a function of type tfb_kernel. pool.c runs its parallel loops, timing.c times
 * it without an interpreter in the way, calls.c calls it for a check, check.c compares what it wrote with what
 * was expected. Everything here is linked into the same shared object as the kernels, so a board needs nothing but libc.
 *
 * Language: C11, POSIX threads and the Linux futex call; GCC or clang (x86-64 or aarch64).
 */
#ifndef TFB_H
#define TFB_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised by one whenever a declaration below changes in a way that an older caller would notice. */
#define TFB_ABI_VERSION 2

#define TFB_EXPORT __attribute__((visibility("default")))

struct tfb_pool;

/* 0 on success. buffers: the operator's inputs in order, then its output, each 64-byte aligned. workspace:
 * 64-byte aligned scratch memory of the size the kernel asks for; any pointer where that size is 0.
 * pool: NULL runs on the calling thread alone. */
typedef int32_t (*tfb_kernel)(void *const *buffers, void *workspace, struct tfb_pool *pool);

/* Handles the iterations begin <= i < end of a parallel loop. */
typedef void (*tfb_body)(void *closure, int64_t begin, int64_t end);

/* Handles all iterations of a parallel loop, 0 <= i < extent. */
typedef void (*tfb_loop)(tfb_body body, void *closure, int64_t extent);

/* What the functions below return when they fail. */
enum {
    TFB_ERROR_KERNEL = -1,   /* the kernel returned something other than 0 */
    TFB_ERROR_ARGUMENT = -2, /* a null pointer or a count out of range */
    TFB_ERROR_MEMORY = -3,   /* no memory */
    TFB_ERROR_STRAYED = -4,  /* the kernel wrote to the stack above its own */
    TFB_ERROR_MET = -5,      /* iterations of a parallel loop wrote different values to one place */
    TFB_ERROR_TILES = -6     /* the kernel needs tile registers, which this system does not let it use */
};

/* The TFB_ABI_VERSION that the artifact was built with. */
TFB_EXPORT int32_t tfb_abi_version(void);

/* ---- pool.c ---------------------------------------------------------------------------------------- */

/* A pool of `threads` threads, the caller included (so threads - 1 are started). Thread i is pinned to
 * cores[i % n_cores]; n_cores 0 leaves the placement to the kernel. The calling thread is thread 0: it is
 * pinned here and gets its former cores back from tfb_pool_destroy (when that runs on the same thread). A core
 * that may not be used leaves its thread unpinned. Fewer threads than asked for may start where the system
 * refuses more; tfb_pool_threads tells. NULL: no memory, or threads < 1, or n_cores < 0.
 *
 * The workers block every signal. After fork() the child may go on using the pool: its first parallel loop
 * starts workers of its own. Destroy the pool before dlclose. */
TFB_EXPORT struct tfb_pool *tfb_pool_create(int32_t threads, const int32_t *cores, int32_t n_cores);
TFB_EXPORT void tfb_pool_destroy(struct tfb_pool *pool);

/* Threads that share a loop now, the caller included; 1 for NULL. */
TFB_EXPORT int32_t tfb_pool_threads(const struct tfb_pool *pool);

/* Whether threads that wait spin before they sleep: they do where each has a core of its own. */
TFB_EXPORT int32_t tfb_pool_spins(const struct tfb_pool *pool);

/* Runs body over 0 <= i < extent in ranges; returns 0 when all are done. Each thread has a contiguous share, whose
 * lengths differ by at most one, and runs it whole. Where Linux says that the cores which the pool was created on
 * differ in speed, and there are more iterations than threads, it runs its share piece by piece, and threads that
 * are done take over what others have not begun. On the calling thread alone when pool is NULL, when the loop is
 * nested in another loop of the same pool, or when another thread is using the pool. body must not call fork. */
TFB_EXPORT int32_t tfb_parallel_for(struct tfb_pool *pool, tfb_body body, void *closure, int64_t extent);

/* Have a function run all parallel loops of this shared object on their calling threads; NULL: as above. */
void tfb_run_by(tfb_loop loop);

/* Have each thread of all parallel loops of this shared object, with or without a pool, begin with the last
 * parts of its chunk (1), or with the first (0). A step that is repeated finds in the caches what it read last:
 * turned every other time, it reads that first. Results are the same, so two models may turn each other's. */
void tfb_run_last_first(int32_t turned);

/* ---- timing.c -------------------------------------------------------------------------------------- */

typedef struct {
    int64_t number;      /* calls per repeat to begin with, >= 1 */
    int64_t max_number;  /* number never grows beyond this; less than `number` means `number` */
    int32_t repeat;      /* figures wanted, >= 1 */
    int32_t warmup;      /* untimed calls first, >= 0 */
    double min_repeat_s; /* number grows, at least doubling, until one repeat lasts this long */
    double cooldown_s;   /* sleep between repeats */
    double give_up_s;    /* stop once 30 min_repeat_s have passed and no repeat had faster calls; 0: never */
    int64_t flush_bytes; /* > 0: overwrite this much memory before every call, outside the timed span */
} tfb_timing;

/* Writes the seconds per call of each repeat to seconds[0 .. timing->repeat) and the calls per repeat to
 * *number_used (may be NULL). Returns how many repeats were written, or a TFB_ERROR code. */
TFB_EXPORT int32_t tfb_time(tfb_kernel kernel, void *const *buffers, void *workspace, struct tfb_pool *pool,
                            const tfb_timing *timing, double *seconds, int64_t *number_used);

/* ---- calls.c --------------------------------------------------------------------------------------- */

/* Memory that a kernel may write. */
typedef struct {
    void *start;
    int64_t bytes;
} tfb_written;

/* Calls the kernel once and returns what it does, or a TFB_ERROR code. The stacks of all threads are filled
 * before, with another value at every call, so that a kernel that reads what it never stored there does not
 * find what an earlier call has left.
 *
 * With n_written > 0 all its parallel loops run on this thread, each in two halves that start from the same
 * memory and do not see what the other writes: a kernel whose iterations depend on each other is wrong then,
 * however lucky its threads are. `written` is all that it may write (outputs, workspace), `partition` >= 0
 * says how iterations are halved. */
TFB_EXPORT int32_t tfb_call(tfb_kernel kernel, void *const *buffers, void *workspace, struct tfb_pool *pool,
                            const tfb_written *written, int32_t n_written, int32_t partition);

/* ---- tiles.c --------------------------------------------------------------------------------------- */

/* What a kernel with tile registers calls first: 0, or TFB_ERROR_TILES. */
int32_t tfb_allow_tiles(void);

/* ---- check.c --------------------------------------------------------------------------------------- */

typedef struct {
    double max_abs_error;     /* over elements that are finite in `got`; infinite where `want` is NaN or
                                 infinite and `got` is not the same */
    double max_abs_reference; /* over the finite elements of `want` */
    int64_t worst_index;      /* first of the wrongly not finite elements, else of the largest error; -1: equal */
    int64_t not_finite;       /* elements NaN or infinite in `got` and finite in `want` */
} tfb_difference;

/* The value of a half float, given by its bits. */
float tfb_of_half(uint16_t half);

/* Compares n elements, half floats by their bits; returns 0, or TFB_ERROR_ARGUMENT. */
TFB_EXPORT int32_t tfb_compare_bf16(const uint16_t *got, const uint16_t *want, int64_t n, tfb_difference *difference);
TFB_EXPORT int32_t tfb_compare_f16(const uint16_t *got, const uint16_t *want, int64_t n, tfb_difference *difference);
TFB_EXPORT int32_t tfb_compare_f32(const float *got, const float *want, int64_t n, tfb_difference *difference);
TFB_EXPORT int32_t tfb_compare_f64(const double *got, const double *want, int64_t n, tfb_difference *difference);
TFB_EXPORT int32_t tfb_compare_i32(const int32_t *got, const int32_t *want, int64_t n, tfb_difference *difference);

#ifdef __cplusplus
}
#endif

#endif
