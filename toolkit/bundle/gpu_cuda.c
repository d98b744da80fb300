/* CUDA for gpu_model.h, by dlopen of the driver: types and numbers are those of NVIDIA's cuda.h. The code is cubins. */
typedef uint64_t cu_address;

static const char *const cu_names[] = {
    "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuCtxSynchronize", "cuMemAlloc_v2", "cuMemFree_v2",
    "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoDAsync_v2", "cuModuleLoadData", "cuModuleUnload",
    "cuModuleGetFunction", "cuLaunchKernel",
};
static struct {
    int32_t (*init)(uint32_t);
    int32_t (*count)(int32_t *);
    int32_t (*device)(int32_t *, int32_t);
    int32_t (*name)(char *, int32_t, int32_t);
    int32_t (*attribute)(int32_t *, int32_t, int32_t);
    int32_t (*retain)(void **, int32_t);
    int32_t (*release)(int32_t);
    int32_t (*make_current)(void *);
    int32_t (*synchronize)(void);
    int32_t (*allocate)(cu_address *, size_t);
    int32_t (*free)(cu_address);
    int32_t (*write)(cu_address, const void *, size_t);
    int32_t (*read)(void *, cu_address, size_t);
    int32_t (*copy)(cu_address, cu_address, size_t, void *);
    int32_t (*load)(void **, const void *);
    int32_t (*unload)(void *);
    int32_t (*function)(void **, void *, const char *);
    int32_t (*launch)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void **,
                      void **);
} cu;
enum { CU_MAX_THREADS_PER_BLOCK = 1, CU_CAPABILITY_MAJOR = 75, CU_CAPABILITY_MINOR = 76 };
static int32_t cu_device;

static int32_t cu_check(const char *doing, const char *what, int32_t status)
{
    return status == 0 ? 0 : fail(doing, what, status);
}

static cu_address cu_at(struct tfb_instance *gpu, struct gpu_place place)
{
    return (cu_address)(uintptr_t)gpu->memories[place.memory] + (cu_address)place.at;
}

static int32_t cu_open(struct tfb_instance *gpu, const char *wanted)
{
    int32_t count = 0, status, major = 0, minor = 0, most = 0;
    char name[256] = "none";

    status = load(gpu, "libcuda.so.1", cu_names, (void **)&cu, sizeof cu_names / sizeof *cu_names);
    if (status != 0) return status;
    if (cu.init(0) != 0 || cu.count(&count) != 0) count = 0;
    for (int32_t i = 0; i < count; ++i) {
        if (cu.device(&cu_device, i) != 0 || cu.name(name, sizeof name, cu_device) != 0) continue;
        if (!contains(name, wanted)) continue;
        cu.attribute(&major, CU_CAPABILITY_MAJOR, cu_device);
        cu.attribute(&minor, CU_CAPABILITY_MINOR, cu_device);
        cu.attribute(&most, CU_MAX_THREADS_PER_BLOCK, cu_device);
        if (major != CAPABILITY_MAJOR || minor < CAPABILITY_MINOR)
            return fail("it is for another compute capability than the device has", name, 10 * major + minor);
        if (most < THREADS_PER_BLOCK) return fail("it needs more threads a block than the device has", name, most);
        status = cu_check("opening the device", name, cu.retain(&gpu->context, cu_device));
        return status == 0 ? cu_check("opening the device", name, cu.make_current(gpu->context)) : status;
    }
    return fail("no CUDA device is what the model needs, the last one is", name, count);
}

static void cu_close(struct tfb_instance *gpu)
{
    if (gpu->context == NULL) return;
    cu.make_current(gpu->context);
    for (int32_t i = 0; i < MEMORIES; ++i)
        if (gpu->memories[i] != NULL) cu.free((cu_address)(uintptr_t)gpu->memories[i]);
    for (int32_t i = 0; i < gpu->n_modules; ++i) cu.unload(gpu->modules[i]);
    cu.release(cu_device);
}

static int32_t cu_allocate(struct tfb_instance *gpu, int32_t memory, int64_t size_bytes)
{
    cu_address address = 0;
    int32_t status = cu.allocate(&address, (size_t)size_bytes);

    gpu->memories[memory] = (void *)(uintptr_t)address;
    return cu_check("memory of the device", "cuMemAlloc", status);
}

static int32_t cu_build(struct tfb_instance *gpu, const char *code, int64_t size_bytes, const struct gpu_kernel *kernel)
{
    void *aligned = NULL;
    int32_t status;

    if (posix_memalign(&aligned, 64, (size_t)size_bytes) != 0) return TFB_MODEL_ERROR_MEMORY;
    status = cu.load(&gpu->modules[gpu->n_modules], memcpy(aligned, code, (size_t)size_bytes));
    free(aligned);
    if (status != 0) return fail("a cubin", "cuModuleLoadData", status);
    ++gpu->n_modules;
    for (int32_t i = 0; i < kernel->n_launches && status == 0; ++i) {
        const char *name = kernel->launches[i].name;

        status = cu.function(&gpu->functions[kernel->first + i], gpu->modules[gpu->n_modules - 1], name);
        status = cu_check("a kernel", name, status);
    }
    return status;
}

static int32_t cu_write(struct tfb_instance *gpu, int32_t memory, const void *from, int64_t size_bytes)
{
    int32_t status = cu.make_current(gpu->context); /* the caller may be another thread than the last one */
    const struct gpu_place whole = {memory, 0, size_bytes};

    if (status == 0) status = cu.write(cu_at(gpu, whole), from, (size_t)size_bytes);
    return cu_check("writing to the device", "cuMemcpyHtoD", status);
}

static int32_t cu_read(struct tfb_instance *gpu, struct gpu_place from, void *to)
{
    return cu_check("reading from the device", "cuMemcpyDtoH", cu.read(to, cu_at(gpu, from), (size_t)from.size_bytes));
}

static int32_t cu_copy(struct tfb_instance *gpu, struct gpu_place source, struct gpu_place target)
{
    int32_t status = cu.copy(cu_at(gpu, target), cu_at(gpu, source), (size_t)source.size_bytes, NULL);

    return cu_check("a copy on the device", "cuMemcpyDtoDAsync", status);
}

static int32_t cu_launch(struct tfb_instance *gpu, int32_t number, const struct gpu_launch *launch,
                         const struct gpu_place *buffers)
{
    cu_address addresses[MOST_BUFFERS];
    void *arguments[MOST_BUFFERS];
    const size_t *blocks = launch->blocks, *threads = launch->threads;
    const struct gpu_place scratch = {SCRATCH, 0, 0};

    for (int32_t i = 0; i < launch->n_buffers; ++i) {
        addresses[i] = cu_at(gpu, launch->buffers[i] < 0 ? scratch : buffers[launch->buffers[i]]);
        arguments[i] = &addresses[i];
    }
    return cu_check("a launch", launch->name,
                    cu.launch(gpu->functions[number], (uint32_t)blocks[0], (uint32_t)blocks[1], (uint32_t)blocks[2],
                              (uint32_t)threads[0], (uint32_t)threads[1], (uint32_t)threads[2], 0, NULL, arguments,
                              NULL));
}

static int32_t cu_finish(struct tfb_instance *gpu)
{
    (void)gpu;
    return cu_check("a launch", "cuCtxSynchronize", cu.synchronize());
}

static const struct gpu_driver driver = {
    cu_open, cu_close, cu_allocate, cu_build, cu_write, cu_read, cu_copy, cu_launch, cu_finish,
};
