/* What the generated C of a GPU's model and its drivers share; gpu_library.py puts this after the header.
 *
 * Memory is numbered: the graph's inputs, its outputs, then ARENA, PARAMETERS and SCRATCH. Start at gpu_run.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA = TFB_MODEL_INPUTS + TFB_MODEL_OUTPUTS, PARAMETERS, SCRATCH, MEMORIES };

/* `size_bytes` from byte `at` of a memory on. */
struct gpu_place {
    int32_t memory;
    int64_t at, size_bytes;
};

/* One function of a kernel's code: blocks of threads, and which of the kernel's buffers it takes (-1: SCRATCH). */
struct gpu_launch {
    const char *name;
    size_t blocks[3], threads[3];
    int32_t n_buffers;
    const int32_t *buffers;
};

/* Where its code lies in the file, and its launches, of which the first one has the number `first`. */
struct gpu_kernel {
    int64_t code_at, code_bytes;
    int32_t first, n_launches;
    const struct gpu_launch *launches;
};

/* A driver; handles are its own. What returns int32_t is 0 where all went well, and says otherwise why by fail(). */
struct gpu_driver {
    int32_t (*open)(struct tfb_instance *gpu, const char *wanted);
    void (*close)(struct tfb_instance *gpu);
    int32_t (*allocate)(struct tfb_instance *gpu, int32_t memory, int64_t size_bytes);
    int32_t (*build)(struct tfb_instance *gpu, const char *code, int64_t size_bytes, const struct gpu_kernel *kernel);
    int32_t (*write)(struct tfb_instance *gpu, int32_t memory, const void *from, int64_t size_bytes);
    int32_t (*read)(struct tfb_instance *gpu, struct gpu_place place, void *to); /* after all that was started */
    int32_t (*copy)(struct tfb_instance *gpu, struct gpu_place source, struct gpu_place target);
    int32_t (*launch)(struct tfb_instance *gpu, int32_t number, const struct gpu_launch *launch,
                      const struct gpu_place *buffers);
    int32_t (*finish)(struct tfb_instance *gpu);
};

struct tfb_instance {
    void *library, *context, *queue; /* the driver's; `queue` is OpenCL's */
    void *memories[MEMORIES];
    void *functions[LAUNCHES];
    void *modules[KERNELS];
    int32_t n_modules;
    struct part { /* OpenCL's sub-buffers */
        struct gpu_place place;
        void *buffer;
    } parts[PARTS];
};

extern void *dlopen(const char *name, int flags);
extern void *dlsym(void *library, const char *name);
struct object { const char *name; void *base; const char *symbol; void *address; };
extern int dladdr(const void *address, struct object *found);
#define DL_NOW 2

static char failure[1024];

/* Notes what went wrong, for tfb_model_error_text; of no failure but the last. */
static int32_t fail(const char *doing, const char *what, int64_t code)
{
    snprintf(failure, sizeof failure, "%s: %s (%lld)", doing, what, (long long)code);
    return TFB_MODEL_ERROR_DEVICE;
}

/* Whether `text` contains `part`, whatever their case. */
static int contains(const char *text, const char *part)
{
    for (; ; ++text) {
        size_t i = 0;

        while (part[i] != 0 && ((text[i] ^ part[i]) & ~32) == 0) ++i;
        if (part[i] == 0) return 1;
        if (*text == 0) return 0;
    }
}

/* The entry points `names` of a driver's library into `entries`. */
static int32_t load(struct tfb_instance *gpu, const char *library, const char *const *names, void **entries, int32_t count)
{
    gpu->library = dlopen(library, DL_NOW);
    if (gpu->library == NULL) return fail("loading the driver", library, 0);
    for (int32_t i = 0; i < count; ++i) {
        entries[i] = dlsym(gpu->library, names[i]);
        if (entries[i] == NULL) return fail("the driver has no function", names[i], 0);
    }
    return 0;
}
