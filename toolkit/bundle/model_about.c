/* What a model's library says of itself, on a CPU and on a GPU. The header, the tensor tables and DEVICE_TEXT, the words
 * for TFB_MODEL_ERROR_DEVICE, come before it. */
int32_t tfb_model_abi_version(void)
{
    return TFB_MODEL_ABI_VERSION;
}

int32_t tfb_model_input_count(void)
{
    return TFB_MODEL_INPUTS;
}

int32_t tfb_model_output_count(void)
{
    return TFB_MODEL_OUTPUTS;
}

const tfb_tensor *tfb_model_input(int32_t index)
{
    return index >= 0 && index < TFB_MODEL_INPUTS ? &inputs[index] : NULL;
}

const tfb_tensor *tfb_model_output(int32_t index)
{
    return index >= 0 && index < TFB_MODEL_OUTPUTS ? &outputs[index] : NULL;
}

const char *tfb_model_error_text(int32_t code)
{
    switch (code) {
    case TFB_MODEL_OK:
        return "no error";
    case TFB_MODEL_ERROR_KERNEL:
        return "a kernel reported a failure, such as that the system refuses it tile registers (AMX)";
    case TFB_MODEL_ERROR_ARGUMENT:
        return "a null pointer or a number out of range was passed";
    case TFB_MODEL_ERROR_MEMORY:
        return "there is no memory for the model";
    case TFB_MODEL_ERROR_DEVICE:
        return DEVICE_TEXT;
    default:
        return "unknown error code";
    }
}
