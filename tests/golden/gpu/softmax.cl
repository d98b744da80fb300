// softmax: 3600 floating-point operations
static inline float max_float(float a, float b) { return ((a < b) | (b != b)) ? b : a; }

// softmax_max: 6 blocks of 32 threads
//   input X: float32[6, 100]
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void kernel_softmax_max(__global const float *restrict X, __global uchar *restrict workspace)
{
    __global float *restrict softmax_max = (__global float *)(workspace + 0);  // softmax_max: float32[6, 1]
    __local float softmax_max_rf[32];  // softmax_max.rf: float32[1, 1, 32]
    const int block = get_group_id(0);
    const int f = block;  // of 6
    const int thread = get_local_id(0);
    {
        const int k1_lane = thread;  // of 32
        softmax_max_rf[k1_lane] = -INFINITY;
        for (int k1 = 0; k1 < 4; ++k1) {
            softmax_max_rf[k1_lane] = max_float(softmax_max_rf[k1_lane], (k1 * 32 + k1_lane < 100) ? X[f * 100 + k1 * 32 + k1_lane] : (-INFINITY));
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float softmax_max_acc;
    if (thread == 0) {
        softmax_max_acc = -INFINITY;
        for (int k1_lane = 0; k1_lane < 32; ++k1_lane) {
            softmax_max_acc = max_float(softmax_max_acc, softmax_max_rf[k1_lane]);
        }
    }
    if (thread == 0) {
        softmax_max[f] = softmax_max_acc;
    }
}

// softmax_exp: 2 blocks of 128 threads
//   input X: float32[6, 100]
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void kernel_softmax_exp(__global const float *restrict X, __global uchar *restrict workspace)
{
    __global const float *restrict softmax_max = (__global const float *)(workspace + 0);  // softmax_max: float32[6, 1]
    __global float *restrict softmax_exp = (__global float *)(workspace + 64);  // softmax_exp: float32[6, 100]
    const int block = get_group_id(0);
    const int f_0 = block;  // of 2
    const int thread = get_local_id(0);
    {
        const int f_1 = thread;  // of 128
        const int i0 = min(f_0 * 128, 22);
        const int i1 = (i0 + f_1) / 25;
        const int i2 = (i0 + f_1) % 25;
        vstore4(exp((vload4(0, &X[i1 * 100 + i2 * 4]) - softmax_max[i1])), 0, &softmax_exp[i1 * 100 + i2 * 4]);
    }
}

// softmax_sum: 6 blocks of 32 threads
__kernel __attribute__((reqd_work_group_size(32, 1, 1)))
void kernel_softmax_sum(__global uchar *restrict workspace)
{
    __global const float *restrict softmax_exp = (__global const float *)(workspace + 64);  // softmax_exp: float32[6, 100]
    __global float *restrict softmax_sum = (__global float *)(workspace + 2496);  // softmax_sum: float32[6, 1]
    __local float softmax_sum_rf[32];  // softmax_sum.rf: float32[1, 1, 32]
    const int block = get_group_id(0);
    const int f = block;  // of 6
    const int thread = get_local_id(0);
    {
        const int k1_lane = thread;  // of 32
        softmax_sum_rf[k1_lane] = 0.0f;
        for (int k1 = 0; k1 < 4; ++k1) {
            softmax_sum_rf[k1_lane] = softmax_sum_rf[k1_lane] + ((k1 * 32 + k1_lane < 100) ? softmax_exp[f * 100 + k1 * 32 + k1_lane] : 0.0f);
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float softmax_sum_acc;
    if (thread == 0) {
        softmax_sum_acc = 0.0f;
        for (int k1_lane = 0; k1_lane < 32; ++k1_lane) {
            softmax_sum_acc = softmax_sum_acc + softmax_sum_rf[k1_lane];
        }
    }
    if (thread == 0) {
        softmax_sum[f] = softmax_sum_acc;
    }
}

// softmax: 2 blocks of 128 threads
//   output softmax: float32[6, 100]
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void kernel_softmax(__global float *restrict softmax, __global uchar *restrict workspace)
{
    __global const float *restrict softmax_exp = (__global const float *)(workspace + 64);  // softmax_exp: float32[6, 100]
    __global const float *restrict softmax_sum = (__global const float *)(workspace + 2496);  // softmax_sum: float32[6, 1]
    const int block = get_group_id(0);
    const int f_0 = block;  // of 2
    const int thread = get_local_id(0);
    {
        const int f_1 = thread;  // of 128
        const int i0 = min(f_0 * 128, 22);
        const int i1 = (i0 + f_1) / 25;
        const int i2 = (i0 + f_1) % 25;
        vstore4(vload4(0, &softmax_exp[i1 * 100 + i2 * 4]) * (1.0f / softmax_sum[i1]), 0, &softmax[i1 * 100 + i2 * 4]);
    }
}
