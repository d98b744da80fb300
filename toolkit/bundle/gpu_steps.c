/* The two things that the steps of a GPU's model ask for beside the driver's copies. */
static int32_t call(struct tfb_instance *gpu, const struct gpu_kernel *kernel, const struct gpu_place *buffers)
{
    int32_t status = 0;

    for (int32_t i = 0; i < kernel->n_launches && status == 0; ++i)
        status = driver.launch(gpu, kernel->first + i, &kernel->launches[i], buffers);
    return status;
}

/* Whether the byte of a condition is not 0, once all before has ended. */
__attribute__((unused)) static int32_t holds(struct tfb_instance *gpu, struct gpu_place condition, int32_t *status)
{
    unsigned char byte = 0;

    *status = driver.read(gpu, condition, &byte);
    return *status == 0 && byte != 0;
}
