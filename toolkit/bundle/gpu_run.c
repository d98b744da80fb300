/* create, run and destroy of a GPU's model: the part that is the same for every model and every driver.
 *
 * gpu_library.py puts before it: gpu_model.h, a driver, the tables `launches_N` and `kernels`, and run_steps.
 */
static int32_t started(struct tfb_instance *gpu, const char *file)
{
    const int64_t sizes[] = {MEMORY_BYTES};
    int32_t status = driver.open(gpu, GPU_DEVICE);

    for (int32_t i = 0; i < MEMORIES && status == 0; ++i) status = driver.allocate(gpu, i, sizes[i] > 4 ? sizes[i] : 4);
    if (status == 0 && PARAMETERS_BYTES > 0) status = driver.write(gpu, PARAMETERS, file + PARAMETERS_AT, PARAMETERS_BYTES);
    for (int32_t i = 0; i < KERNELS && status == 0; ++i)
        status = driver.build(gpu, file + kernels[i].code_at, kernels[i].code_bytes, &kernels[i]);
    return status;
}

/* The content of model.gpu beside this library, to be freed; NULL where it is not what the library was made with. */
static char *model_file(void)
{
    struct object own = {NULL, NULL, NULL, NULL};
    char path[4096], *content = NULL;
    const char *slash = NULL;
    uint32_t sum = UINT32_MAX; /* CRC-32, as of zlib */
    FILE *file = NULL;

    if (dladdr((const void *)kernels, &own) != 0 && own.name != NULL)
        for (const char *c = own.name; *c != 0; ++c) slash = *c == '/' ? c : slash;
    snprintf(path, sizeof path, "%.*s%s", slash == NULL ? 0 : (int)(slash - own.name + 1), own.name, GPU_FILE);
    file = fopen(path, "rb");
    content = malloc(GPU_FILE_BYTES + 1);
    if (file == NULL || content == NULL || fread(content, 1, GPU_FILE_BYTES + 1, file) != GPU_FILE_BYTES) {
        free(content);
        content = NULL;
    }
    if (file != NULL) fclose(file);
    for (int64_t i = 0; content != NULL && i < GPU_FILE_BYTES; ++i) {
        sum ^= (unsigned char)content[i];
        for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ (UINT32_C(0xEDB88320) & -(sum & 1));
    }
    if (content == NULL || ~sum != GPU_FILE_SUM) {
        fail("the model's file, which this library was made with, cannot be read", path, 0);
        free(content);
        return NULL;
    }
    return content;
}

int32_t tfb_model_create(tfb_instance **instance)
{
    return tfb_model_create_on(instance, 1, NULL, 0);
}

int32_t tfb_model_create_on(tfb_instance **instance, int32_t threads, const int32_t *cores, int32_t n_cores)
{
    struct tfb_instance *gpu;
    char *file;
    int32_t status;

    if (instance == NULL) return TFB_MODEL_ERROR_ARGUMENT;
    *instance = NULL;
    if (threads < 1 || n_cores < 0 || (n_cores > 0 && cores == NULL)) return TFB_MODEL_ERROR_ARGUMENT;
    gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) return TFB_MODEL_ERROR_MEMORY;
    file = model_file();
    status = file == NULL ? TFB_MODEL_ERROR_DEVICE : started(gpu, file);
    free(file);
    if (status == 0) *instance = gpu;
    else tfb_model_destroy(gpu);
    return status;
}

int32_t tfb_model_run(tfb_instance *gpu, const void *const *from, void *const *to)
{
    int32_t status = 0;

    if (gpu == NULL || to == NULL) return TFB_MODEL_ERROR_ARGUMENT;
    if (from == NULL && TFB_MODEL_INPUTS > 0) return TFB_MODEL_ERROR_ARGUMENT;
    for (int32_t i = 0; i < TFB_MODEL_INPUTS && status == 0; ++i) {
        if (from[i] == NULL && inputs[i].size_bytes > 0) return TFB_MODEL_ERROR_ARGUMENT;
        if (inputs[i].size_bytes > 0) status = driver.write(gpu, i, from[i], inputs[i].size_bytes);
    }
    if (status == 0) status = run_steps(gpu);
    if (status == 0) status = driver.finish(gpu);
    for (int32_t i = 0; i < TFB_MODEL_OUTPUTS && status == 0; ++i) {
        const struct gpu_place whole = {TFB_MODEL_INPUTS + i, 0, outputs[i].size_bytes};

        if (to[i] == NULL && outputs[i].size_bytes > 0) return TFB_MODEL_ERROR_ARGUMENT;
        if (outputs[i].size_bytes > 0) status = driver.read(gpu, whole, to[i]);
    }
    return status;
}

void tfb_model_destroy(tfb_instance *gpu)
{
    if (gpu == NULL) return;
    if (gpu->library != NULL) driver.close(gpu);
    free(gpu);
}
