/* The model "small network" as a C library. Link with the shared object beside this file; it needs nothing but libc.
 *
 *     tfb_instance *instance;
 *     const void *inputs[] = {...};
 *     void *outputs[] = {...};
 *     if (tfb_model_create(&instance) == TFB_MODEL_OK) {
 *         tfb_model_run(instance, inputs, outputs);
 *         tfb_model_destroy(instance);
 *     }
 *
 * Buffers are in C order without padding and may have any alignment; 64-byte aligned ones are used in place,
 * others are copied. One instance serves one thread at a time; several instances may run at once.
 */
#ifndef TFB_MODEL_H
#define TFB_MODEL_H

#include <stdint.h>

#define TFB_MODEL_ABI_VERSION 2
#define TFB_MODEL_INPUTS 2
/* data_0: float32 1x3x224x224 NCHW */
#define TFB_MODEL_INPUT_0_ELEMENTS 150528
#define TFB_MODEL_INPUT_0_BYTES 602112
/* x: float32 4x8 NC */
#define TFB_MODEL_INPUT_1_ELEMENTS 32
#define TFB_MODEL_INPUT_1_BYTES 128
#define TFB_MODEL_OUTPUTS 1
/* y: float32 4x3 NC */
#define TFB_MODEL_OUTPUT_0_ELEMENTS 12
#define TFB_MODEL_OUTPUT_0_BYTES 48

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TFB_MODEL_OK = 0,
    TFB_MODEL_ERROR_KERNEL = -1,   /* a kernel reported a failure: the system refuses it tile registers (AMX) */
    TFB_MODEL_ERROR_ARGUMENT = -2, /* a null pointer or a number out of range */
    TFB_MODEL_ERROR_MEMORY = -3,   /* no memory for the instance */
    TFB_MODEL_ERROR_DEVICE = -4    /* a GPU's model: no such device, or its driver failed */
};

typedef struct tfb_tensor {
    const char *name;
    const char *dtype;    /* "float32" */
    const char *layout;   /* "NCHW"; "" where the axes have no fixed meaning */
    const int64_t *shape; /* `rank` extents */
    int32_t rank;
    int64_t elements;
    int64_t size_bytes;
    int32_t count_output;    /* the output, one int64, that says how many slices count; -1: all of them do */
    int32_t count_dimension; /* the dimension of these slices, the first of which count */
} tfb_tensor;

typedef struct tfb_instance tfb_instance;

/* The TFB_MODEL_ABI_VERSION that the library was built with. */
int32_t tfb_model_abi_version(void);

/* Number and description of inputs and outputs; NULL for an index out of range. */
int32_t tfb_model_input_count(void);
int32_t tfb_model_output_count(void);
const tfb_tensor *tfb_model_input(int32_t index);
const tfb_tensor *tfb_model_output(int32_t index);

/* Allocates all memory and starts the threads that the model was tuned with. The calling thread is one of
 * them: it is pinned to the first core until destroy. Call run and destroy from the same thread. On failure *instance
 * is NULL. */
int32_t tfb_model_create(tfb_instance **instance);

/* The same with `threads` threads (the caller included) on `cores`; n_cores 0: pinned nowhere. A GPU's model has no
 * use for them. */
int32_t tfb_model_create_on(tfb_instance **instance, int32_t threads, const int32_t *cores, int32_t n_cores);

/* Computes all outputs from all inputs; the arrays are in the order of tfb_model_input and tfb_model_output. */
int32_t tfb_model_run(tfb_instance *instance, const void *const *inputs, void *const *outputs);

/* Frees the instance; NULL is fine. */
void tfb_model_destroy(tfb_instance *instance);

/* An English sentence for a code that one of these functions returned; of TFB_MODEL_ERROR_DEVICE, what the last
 * failure of any thread was. */
const char *tfb_model_error_text(int32_t code);

/* The model as one kernel, for tools: buffers are the inputs, then the outputs, each 64-byte aligned;
 * workspace is 64-byte aligned and tfb_model_workspace_bytes() long; pool NULL: on the calling thread. */
struct tfb_pool;
int32_t tfb_model(void *const *buffers, void *workspace, struct tfb_pool *pool);
int64_t tfb_model_workspace_bytes(void);

#ifdef __cplusplus
}
#endif

#endif
