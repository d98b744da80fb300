// softmax: 3600 floating-point operations
static inline float max_float(float a, float b) { return ((a < b) | (b != b)) ? b : a; }

// softmax: 6 blocks of 32 threads
//   input X: float32[6, 100]
//   output softmax: float32[6, 100]
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void kernel_softmax(__global const float *restrict X, __global float *restrict softmax)
{
    __local float softmax_max_rf[32];  // softmax_max.rf: float32[1, 1, 32]
    __local float softmax_max;  // softmax_max: float32[1, 1]
    __local float softmax_exp[100];  // softmax_exp: float32[1, 100]
    __local float softmax_sum_rf[32];  // softmax_sum.rf: float32[1, 1, 32]
    __local float softmax_sum;  // softmax_sum: float32[1, 1]
    const int block = get_group_id(0);
    const int i0_0 = block;  // of 6
    const int thread = get_local_id(0);
    {
        const int k1_lane = thread;  // of 32
        float softmax_max_rf_acc;
        softmax_max_rf_acc = -INFINITY;
        #pragma unroll
        for (int k1 = 0; k1 < 4; ++k1) {
            softmax_max_rf_acc = max_float(softmax_max_rf_acc, (k1 * 32 + k1_lane < 100) ? X[i0_0 * 100 + k1 * 32 + k1_lane] : (-INFINITY));
        }
        softmax_max_rf[k1_lane] = softmax_max_rf_acc;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float softmax_max_acc;
    if (thread == 0) {
        softmax_max_acc = -INFINITY;
        #pragma unroll
        for (int k1_lane = 0; k1_lane < 32; ++k1_lane) {
            softmax_max_acc = max_float(softmax_max_acc, softmax_max_rf[k1_lane]);
        }
    }
    if (thread == 0) {
        softmax_max = softmax_max_acc;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    {
        const int f_1 = thread;  // of 32
        if (f_1 < 25) {
            const int i0 = min(f_1 * 4, 96);
            vstore4(exp((vload4(0, &X[i0_0 * 100 + i0]) - softmax_max)), 0, &softmax_exp[i0]);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    {
        const int k1_lane = thread;  // of 32
        float softmax_sum_rf_acc;
        softmax_sum_rf_acc = 0.0f;
        #pragma unroll
        for (int k1 = 0; k1 < 4; ++k1) {
            softmax_sum_rf_acc = softmax_sum_rf_acc + ((k1 * 32 + k1_lane < 100) ? softmax_exp[k1 * 32 + k1_lane] : 0.0f);
        }
        softmax_sum_rf[k1_lane] = softmax_sum_rf_acc;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float softmax_sum_acc;
    if (thread == 0) {
        softmax_sum_acc = 0.0f;
        #pragma unroll
        for (int k1_lane = 0; k1_lane < 32; ++k1_lane) {
            softmax_sum_acc = softmax_sum_acc + softmax_sum_rf[k1_lane];
        }
    }
    if (thread == 0) {
        softmax_sum = softmax_sum_acc;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    {
        const int f_1 = thread;  // of 32
        if (f_1 < 25) {
            const int i0 = min(f_1 * 4, 96);
            vstore4(vload4(0, &softmax_exp[i0]) * (1.0f / softmax_sum), 0, &softmax[i0_0 * 100 + i0]);
        }
    }
}
