/* An application that knows the model only by its header: reads x from stdin, writes y to stdout. Valid C and C++. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    /* as unaligned as floats can be when asked for, page-aligned by malloc's grace otherwise */
    const size_t shift = argc > 1 ? (size_t)atoi(argv[1]) : 0;
    char *x = (char *)malloc(TFB_MODEL_INPUT_0_BYTES + 64) + shift;
    char *y = (char *)malloc(TFB_MODEL_OUTPUT_0_BYTES + 64) + shift;
    const void *inputs[TFB_MODEL_INPUTS] = {x};
    void *outputs[TFB_MODEL_OUTPUTS] = {y};
    const tfb_tensor *input = tfb_model_input(0);
    tfb_instance *instance = NULL;
    int run;

    if (tfb_model_abi_version() != TFB_MODEL_ABI_VERSION) return fail("abi version");
    if (tfb_model_input_count() != 1 || tfb_model_output_count() != 1) return fail("counts");
    if (strcmp(input->name, "x") != 0 || strcmp(input->dtype, "float32") != 0) return fail("name or dtype");
    if (input->rank != 2 || input->shape[0] != 4 || input->shape[1] != 8) return fail("shape");
    if (input->size_bytes != TFB_MODEL_INPUT_0_BYTES) return fail("size");
    if (tfb_model_input(1) != NULL || tfb_model_output(-1) != NULL) return fail("index out of range");
    if (tfb_model_create(NULL) != TFB_MODEL_ERROR_ARGUMENT) return fail("create(NULL)");
    if (tfb_model_create_on(&instance, 0, NULL, 0) != TFB_MODEL_ERROR_ARGUMENT) return fail("no threads");
    if (instance != NULL) return fail("instance after a failure");
    if (fread(x, 1, TFB_MODEL_INPUT_0_BYTES, stdin) != TFB_MODEL_INPUT_0_BYTES) return fail("stdin");
    if (tfb_model_create(&instance) != TFB_MODEL_OK) return fail("create");
    if (tfb_model_run(instance, NULL, outputs) != TFB_MODEL_ERROR_ARGUMENT) return fail("run without inputs");
    for (run = 0; run < 3; ++run) {
        memset(y, 0xff, TFB_MODEL_OUTPUT_0_BYTES);
        if (tfb_model_run(instance, inputs, outputs) != TFB_MODEL_OK) return fail("run");
    }
    tfb_model_destroy(instance);
    tfb_model_destroy(NULL);
    if (strcmp(tfb_model_error_text(TFB_MODEL_OK), "no error") != 0) return fail("error text");
    if (fwrite(y, 1, TFB_MODEL_OUTPUT_0_BYTES, stdout) != TFB_MODEL_OUTPUT_0_BYTES) return fail("stdout");
    return 0;
}
