/* create, run and destroy around `tfb_model`: the part of a model library that is the same for every model.
 *
 * library.py puts these before it: the header, model_about.c, ALIGNMENT, WORKSPACE_BYTES, LOCAL_BYTES, TUNED_THREADS,
 * TUNED_CORES, tuned_cores, the tensor tables `inputs` and `outputs`, the weights `tfb_parameters` and PARAMETERS_BYTES of them, and
 * the function tfb_model itself.
 */
#include "tfb.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct tfb_instance {
    struct tfb_pool *pool;
    unsigned char *workspace;                                    /* also where the one allocation begins */
    unsigned char *staged[TFB_MODEL_INPUTS + TFB_MODEL_OUTPUTS]; /* aligned copies for unaligned callers */
};

static int64_t padded(int64_t size_bytes)
{
    return (size_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int is_aligned(const void *pointer)
{
    return (uintptr_t)pointer % ALIGNMENT == 0;
}

/* Memory whose pages are there before the first run: zeros, in large pages where it fills some and the system has them
 * (HUGE_BYTES is their size with pages of 4 KiB, on x86-64 and aarch64). NULL: no memory. */
#define HUGE_BYTES ((size_t)1 << 21)

static void *zeros(size_t size_bytes)
{
    void *memory;
    size_t huge_bytes = size_bytes / HUGE_BYTES * HUGE_BYTES;

    if (posix_memalign(&memory, huge_bytes ? HUGE_BYTES : ALIGNMENT, size_bytes) != 0) return NULL;
    if (huge_bytes) madvise(memory, huge_bytes, MADV_HUGEPAGE); /* a hint: without it they are small ones */
    return memset(memory, 0, size_bytes);
}

#if PARAMETERS_BYTES > 0
/* Have the weights mapped, and read from the file where they are not in memory yet. */
static void map_parameters(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)tfb_parameters / page * page, end = (uintptr_t)tfb_parameters + PARAMETERS_BYTES;

    madvise((void *)first, end - first, MADV_WILLNEED); /* a hint: the loop waits for what is not read ahead */
    for (uintptr_t at = (uintptr_t)tfb_parameters; at < end; at += page) (void)*(const volatile unsigned char *)at;
}
#else
static void map_parameters(void) {}
#endif

/* Have the pages of a thread's stack there that kernels keep their blocks on. The bytes beside those are for registers
 * that do not fit and for the calls down to a kernel: a few KiB. A page of 4 KiB is the smallest that Linux has. */
#define STACK_BYTES (LOCAL_BYTES + 16384)

__attribute__((noinline)) static void touch_stack(void *closure, int64_t begin, int64_t end)
{
    volatile unsigned char pages[STACK_BYTES];

    (void)closure, (void)begin, (void)end;
    for (size_t at = 0; at < STACK_BYTES; at += 4096) pages[STACK_BYTES - 1 - at] = 0;
}

int64_t tfb_model_workspace_bytes(void)
{
    return WORKSPACE_BYTES;
}

int32_t tfb_model_create(tfb_instance **instance)
{
    return tfb_model_create_on(instance, TUNED_THREADS, tuned_cores, TUNED_CORES);
}

int32_t tfb_model_create_on(tfb_instance **instance, int32_t threads, const int32_t *cores, int32_t n_cores)
{
    tfb_instance *made;
    unsigned char *memory;
    int64_t size_bytes = padded(WORKSPACE_BYTES) + ALIGNMENT;

    if (instance == NULL) return TFB_MODEL_ERROR_ARGUMENT;
    *instance = NULL;
    if (threads < 1 || n_cores < 0 || (n_cores > 0 && cores == NULL)) return TFB_MODEL_ERROR_ARGUMENT;
    for (int32_t i = 0; i < TFB_MODEL_INPUTS; ++i) size_bytes += padded(inputs[i].size_bytes);
    for (int32_t i = 0; i < TFB_MODEL_OUTPUTS; ++i) size_bytes += padded(outputs[i].size_bytes);
    made = calloc(1, sizeof *made);
    if (made == NULL) return TFB_MODEL_ERROR_MEMORY;
    memory = zeros((size_t)size_bytes);
    if (memory == NULL) {
        free(made);
        return TFB_MODEL_ERROR_MEMORY;
    }
    map_parameters();
    made->workspace = memory;
    memory = made->workspace + padded(WORKSPACE_BYTES);
    for (int32_t i = 0; i < TFB_MODEL_INPUTS + TFB_MODEL_OUTPUTS; ++i) {
        const tfb_tensor *tensor = i < TFB_MODEL_INPUTS ? &inputs[i] : &outputs[i - TFB_MODEL_INPUTS];

        made->staged[i] = memory;
        memory = made->staged[i] + padded(tensor->size_bytes);
    }
    if (threads > 1 || n_cores > 0) {
        made->pool = tfb_pool_create(threads, cores, n_cores);
        if (made->pool == NULL) {
            tfb_model_destroy(made);
            return TFB_MODEL_ERROR_MEMORY;
        }
    }
    tfb_parallel_for(made->pool, touch_stack, NULL, tfb_pool_threads(made->pool)); /* each thread takes one part */
    *instance = made;
    return TFB_MODEL_OK;
}

int32_t tfb_model_run(tfb_instance *instance, const void *const *from, void *const *to)
{
    void *buffers[TFB_MODEL_INPUTS + TFB_MODEL_OUTPUTS];
    int32_t status;

    if (instance == NULL || to == NULL) return TFB_MODEL_ERROR_ARGUMENT;
    if (from == NULL && TFB_MODEL_INPUTS > 0) return TFB_MODEL_ERROR_ARGUMENT;
    for (int32_t i = 0; i < TFB_MODEL_INPUTS; ++i) {
        if (from[i] == NULL && inputs[i].size_bytes > 0) return TFB_MODEL_ERROR_ARGUMENT;
        buffers[i] = (void *)from[i];
        if (!is_aligned(from[i]))
            buffers[i] = memcpy(instance->staged[i], from[i], (size_t)inputs[i].size_bytes);
    }
    for (int32_t i = 0; i < TFB_MODEL_OUTPUTS; ++i) {
        if (to[i] == NULL && outputs[i].size_bytes > 0) return TFB_MODEL_ERROR_ARGUMENT;
        buffers[TFB_MODEL_INPUTS + i] = is_aligned(to[i]) ? to[i] : instance->staged[TFB_MODEL_INPUTS + i];
    }
    status = tfb_model(buffers, instance->workspace, instance->pool);
    if (status != TFB_MODEL_OK) return status;
    for (int32_t i = 0; i < TFB_MODEL_OUTPUTS; ++i)
        if (!is_aligned(to[i]))
            memcpy(to[i], instance->staged[TFB_MODEL_INPUTS + i], (size_t)outputs[i].size_bytes);
    return TFB_MODEL_OK;
}

void tfb_model_destroy(tfb_instance *instance)
{
    if (instance == NULL) return;
    if (instance->pool != NULL) tfb_pool_destroy(instance->pool);
    free(instance->workspace);
    free(instance);
}
