/* OpenCL 1.2 for gpu_model.h, by dlopen: types and numbers are those of Khronos' CL/cl.h. */
static const char *const cl_names[] = {
    "clGetPlatformIDs", "clGetPlatformInfo", "clGetDeviceIDs", "clGetDeviceInfo", "clCreateContext",
    "clCreateCommandQueue", "clCreateBuffer", "clCreateSubBuffer", "clCreateProgramWithSource", "clBuildProgram",
    "clGetProgramBuildInfo", "clCreateKernel", "clSetKernelArg", "clEnqueueNDRangeKernel", "clEnqueueWriteBuffer",
    "clEnqueueReadBuffer", "clEnqueueCopyBuffer", "clFinish", "clReleaseMemObject", "clReleaseKernel",
    "clReleaseProgram", "clReleaseCommandQueue", "clReleaseContext",
};
static struct {
    int32_t (*get_platforms)(uint32_t, void **, uint32_t *);
    int32_t (*platform_info)(void *, uint32_t, size_t, void *, size_t *);
    int32_t (*get_devices)(void *, uint64_t, uint32_t, void **, uint32_t *);
    int32_t (*device_info)(void *, uint32_t, size_t, void *, size_t *);
    void *(*create_context)(const intptr_t *, uint32_t, void *const *, void *, void *, int32_t *);
    void *(*create_queue)(void *, void *, uint64_t, int32_t *);
    void *(*create_buffer)(void *, uint64_t, size_t, void *, int32_t *);
    void *(*create_part)(void *, uint64_t, uint32_t, const void *, int32_t *);
    void *(*create_program)(void *, uint32_t, const char **, const size_t *, int32_t *);
    int32_t (*build_program)(void *, uint32_t, void *const *, const char *, void *, void *);
    int32_t (*build_info)(void *, void *, uint32_t, size_t, void *, size_t *);
    void *(*create_kernel)(void *, const char *, int32_t *);
    int32_t (*set_argument)(void *, uint32_t, size_t, const void *);
    int32_t (*launch)(void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, const void *,
                      void *);
    int32_t (*write)(void *, void *, uint32_t, size_t, size_t, const void *, uint32_t, const void *, void *);
    int32_t (*read)(void *, void *, uint32_t, size_t, size_t, void *, uint32_t, const void *, void *);
    int32_t (*copy)(void *, void *, void *, size_t, size_t, size_t, uint32_t, const void *, void *);
    int32_t (*finish)(void *);
    int32_t (*release_buffer)(void *);
    int32_t (*release_kernel)(void *);
    int32_t (*release_program)(void *);
    int32_t (*release_queue)(void *);
    int32_t (*release_context)(void *);
} cl;
enum {
    CL_PLATFORM_NAME = 0x0902, CL_DEVICE_TYPE = 0x1000, CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004, CL_DEVICE_NAME = 0x102B,
    CL_PROGRAM_BUILD_LOG = 0x1183, CL_BUFFER_CREATE_TYPE_REGION = 0x1220, CL_MEM_READ_WRITE = 1, MOST_DEVICES = 16,
};
static const uint64_t CL_ALL_DEVICES = 0xFFFFFFFF, CL_GPU_OR_ACCELERATOR = 4 | 8, CL_GPU = 4;
static void *cl_device;

/* How well a device fits: 0 not at all, a GPU best. Its names go into `known`. */
static int cl_fitness(void *platform, void *device, const char *wanted, char *known, size_t known_bytes)
{
    char name[256];
    size_t length, most = 0;
    uint64_t type = 0;

    memset(name, 0, sizeof name);
    cl.platform_info(platform, CL_PLATFORM_NAME, 100, name, NULL);
    length = strlen(name);
    name[length++] = ':';
    name[length++] = ' ';
    cl.device_info(device, CL_DEVICE_NAME, sizeof name - 1 - length, name + length, NULL);
    snprintf(known + strlen(known), known_bytes - strlen(known), "%s; ", name);
    cl.device_info(device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (!contains(name, wanted) || most < THREADS_PER_BLOCK) return 0;
    cl.device_info(device, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    return type & CL_GPU ? 3 : type & CL_GPU_OR_ACCELERATOR ? 2 : 1;
}

static int32_t cl_open(struct tfb_instance *gpu, const char *wanted)
{
    void *platforms[MOST_DEVICES], *devices[MOST_DEVICES];
    uint32_t n_platforms = 0, n_devices;
    int32_t status;
    int best = 0;
    char known[512] = "no OpenCL device is what the model needs, there is: ";

    if (load(gpu, "libOpenCL.so.1", cl_names, (void **)&cl, sizeof cl_names / sizeof *cl_names) != 0) {
        failure[0] = 0;
        status = load(gpu, "libOpenCL.so", cl_names, (void **)&cl, sizeof cl_names / sizeof *cl_names);
        if (status != 0) return status;
    }
    if (cl.get_platforms(MOST_DEVICES, platforms, &n_platforms) != 0) n_platforms = 0;
    for (uint32_t p = 0; p < n_platforms && p < MOST_DEVICES; ++p) {
        if (cl.get_devices(platforms[p], CL_ALL_DEVICES, MOST_DEVICES, devices, &n_devices) != 0) continue;
        for (uint32_t d = 0; d < n_devices && d < MOST_DEVICES; ++d) {
            int found = cl_fitness(platforms[p], devices[d], wanted, known, sizeof known);

            if (found > best) {
                best = found;
                cl_device = devices[d];
            }
        }
    }
    if (best == 0) return fail(known, wanted, THREADS_PER_BLOCK);
    gpu->context = cl.create_context(NULL, 1, &cl_device, NULL, NULL, &status);
    if (gpu->context == NULL) return fail("opening the device", "clCreateContext", status);
    gpu->queue = cl.create_queue(gpu->context, cl_device, 0, &status);
    return gpu->queue != NULL ? 0 : fail("opening the device", "clCreateCommandQueue", status);
}

static void cl_close(struct tfb_instance *gpu)
{
    for (int32_t i = 0; i < PARTS; ++i)
        if (gpu->parts[i].buffer != NULL) cl.release_buffer(gpu->parts[i].buffer);
    for (int32_t i = 0; i < MEMORIES; ++i)
        if (gpu->memories[i] != NULL) cl.release_buffer(gpu->memories[i]);
    for (int32_t i = 0; i < LAUNCHES; ++i)
        if (gpu->functions[i] != NULL) cl.release_kernel(gpu->functions[i]);
    for (int32_t i = 0; i < gpu->n_modules; ++i) cl.release_program(gpu->modules[i]);
    if (gpu->queue != NULL) cl.release_queue(gpu->queue);
    if (gpu->context != NULL) cl.release_context(gpu->context);
}

static int32_t cl_allocate(struct tfb_instance *gpu, int32_t memory, int64_t size_bytes)
{
    int32_t status;

    gpu->memories[memory] = cl.create_buffer(gpu->context, CL_MEM_READ_WRITE, (size_t)size_bytes, NULL, &status);
    return gpu->memories[memory] != NULL ? 0 : fail("memory of the device", "clCreateBuffer", status);
}

static int32_t cl_build(struct tfb_instance *gpu, const char *code, int64_t size_bytes, const struct gpu_kernel *kernel)
{
    size_t length = (size_t)size_bytes;
    int32_t status;
    void *program = cl.create_program(gpu->context, 1, &code, &length, &status);

    if (program == NULL) return fail("a kernel", "clCreateProgramWithSource", status);
    gpu->modules[gpu->n_modules++] = program;
    status = cl.build_program(program, 1, &cl_device, "-cl-std=CL1.2", NULL, NULL);
    if (status != 0) {
        char log[800] = "";

        cl.build_info(program, cl_device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
        return fail("building a kernel", log, status);
    }
    for (int32_t i = 0; i < kernel->n_launches; ++i) {
        gpu->functions[kernel->first + i] = cl.create_kernel(program, kernel->launches[i].name, &status);
        if (gpu->functions[kernel->first + i] == NULL) return fail("a kernel", kernel->launches[i].name, status);
    }
    return 0;
}

static int32_t cl_write(struct tfb_instance *gpu, int32_t memory, const void *from, int64_t size_bytes)
{
    int32_t status = cl.write(gpu->queue, gpu->memories[memory], 1, 0, (size_t)size_bytes, from, 0, NULL, NULL);

    return status == 0 ? 0 : fail("writing to the device", "clEnqueueWriteBuffer", status);
}

static int32_t cl_read(struct tfb_instance *gpu, struct gpu_place from, void *to)
{
    int32_t status = cl.read(gpu->queue, gpu->memories[from.memory], 1, (size_t)from.at, (size_t)from.size_bytes, to, 0,
                             NULL, NULL);

    return status == 0 ? 0 : fail("reading from the device", "clEnqueueReadBuffer", status);
}

static int32_t cl_copy(struct tfb_instance *gpu, struct gpu_place source, struct gpu_place target)
{
    int32_t status = cl.copy(gpu->queue, gpu->memories[source.memory], gpu->memories[target.memory], (size_t)source.at,
                             (size_t)target.at, (size_t)source.size_bytes, 0, NULL, NULL);

    return status == 0 ? 0 : fail("a copy on the device", "clEnqueueCopyBuffer", status);
}

/* The sub-buffer of a place: a kept one, or a new one, which is kept where there is room; `*given` if there is none. */
static void *cl_part(struct tfb_instance *gpu, struct gpu_place place, void **given, int32_t *status)
{
    const size_t region[2] = {(size_t)place.at, (size_t)place.size_bytes};
    uint64_t start = ((uint64_t)place.memory * 31 + (uint64_t)place.at / 512) * 31 + (uint64_t)place.size_bytes;
    struct part *kept = NULL;
    void *made;

    for (int32_t i = 0; i < 8 && kept == NULL; ++i) {
        struct part *found = &gpu->parts[(start + (uint64_t)i) % PARTS];

        if (found->buffer == NULL) kept = found;
        else if (found->place.memory == place.memory && found->place.at == place.at
                 && found->place.size_bytes == place.size_bytes)
            return found->buffer;
    }
    made = cl.create_part(gpu->memories[place.memory], CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, region, status);
    if (kept != NULL && made != NULL) {
        kept->place = place;
        kept->buffer = made;
    } else {
        *given = made;
    }
    return made;
}

static int32_t cl_launch(struct tfb_instance *gpu, int32_t number, const struct gpu_launch *launch,
                         const struct gpu_place *buffers)
{
    void *function = gpu->functions[number], *given[MOST_BUFFERS] = {NULL};
    size_t global[3];
    int32_t status = 0;

    for (int32_t i = 0; i < launch->n_buffers && status == 0; ++i) {
        int32_t index = launch->buffers[i];
        void *buffer = index < 0 ? gpu->memories[SCRATCH] : cl_part(gpu, buffers[index], &given[i], &status);

        if (buffer != NULL) status = cl.set_argument(function, (uint32_t)i, sizeof buffer, &buffer);
    }
    for (int32_t i = 0; i < 3; ++i) global[i] = launch->blocks[i] * launch->threads[i];
    if (status == 0) status = cl.launch(gpu->queue, function, 3, NULL, global, launch->threads, 0, NULL, NULL);
    for (int32_t i = 0; i < launch->n_buffers; ++i) /* it lives until the launch has ended */
        if (given[i] != NULL) cl.release_buffer(given[i]);
    return status == 0 ? 0 : fail("a launch", launch->name, status);
}

static int32_t cl_finish(struct tfb_instance *gpu)
{
    int32_t status = cl.finish(gpu->queue);

    return status == 0 ? 0 : fail("a launch", "clFinish", status);
}

static const struct gpu_driver driver = {
    cl_open, cl_close, cl_allocate, cl_build, cl_write, cl_read, cl_copy, cl_launch, cl_finish,
};
