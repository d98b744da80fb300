// softmax: 3600 floating-point operations
__device__ static inline float max_float(float a, float b) { return ((a < b) | (b != b)) ? b : a; }

// softmax_max: 6 blocks of 32 threads
//   input X: float32[6, 100]
extern "C" __global__ __launch_bounds__(32)
void kernel_softmax_max(const float *__restrict__ X, unsigned char *__restrict__ workspace)
{
    float *__restrict__ softmax_max = (float *)(workspace + 0);  // softmax_max: float32[6, 1]
    __shared__ __align__(16) float softmax_max_rf[32];  // softmax_max.rf: float32[1, 1, 32]
    const int block = (int)blockIdx.x;
    const int f = block;  // of 6
    const int thread = (int)threadIdx.x;
    {
        const int k1_lane = thread;  // of 32
        softmax_max_rf[k1_lane] = -__int_as_float(0x7f800000);
        for (int k1 = 0; k1 < 4; ++k1) {
            softmax_max_rf[k1_lane] = max_float(softmax_max_rf[k1_lane], (k1 * 32 + k1_lane < 100) ? X[f * 100 + k1 * 32 + k1_lane] : (-__int_as_float(0x7f800000)));
        }
    }
    __syncthreads();
    float softmax_max_acc;
    if (thread == 0) {
        softmax_max_acc = -__int_as_float(0x7f800000);
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
extern "C" __global__ __launch_bounds__(128)
void kernel_softmax_exp(const float *__restrict__ X, unsigned char *__restrict__ workspace)
{
    const float *__restrict__ softmax_max = (const float *)(workspace + 0);  // softmax_max: float32[6, 1]
    float *__restrict__ softmax_exp = (float *)(workspace + 64);  // softmax_exp: float32[6, 100]
    const int block = (int)blockIdx.x;
    const int f_0 = block;  // of 2
    const int thread = (int)threadIdx.x;
    {
        const int f_1 = thread;  // of 128
        const int i0 = min(f_0 * 128, 22);
        const int i1 = (i0 + f_1) / 25;
        const int i2 = (i0 + f_1) % 25;
        *(float4 *)&softmax_exp[i1 * 100 + i2 * 4] = make_float4(expf((X[i1 * 100 + i2 * 4] - softmax_max[i1])), expf((X[i1 * 100 + i2 * 4 + 1] - softmax_max[i1])), expf((X[i1 * 100 + i2 * 4 + 2] - softmax_max[i1])), expf((X[i1 * 100 + i2 * 4 + 3] - softmax_max[i1])));
    }
}

// softmax_sum: 6 blocks of 32 threads
extern "C" __global__ __launch_bounds__(32)
void kernel_softmax_sum(unsigned char *__restrict__ workspace)
{
    const float *__restrict__ softmax_exp = (const float *)(workspace + 64);  // softmax_exp: float32[6, 100]
    float *__restrict__ softmax_sum = (float *)(workspace + 2496);  // softmax_sum: float32[6, 1]
    __shared__ __align__(16) float softmax_sum_rf[32];  // softmax_sum.rf: float32[1, 1, 32]
    const int block = (int)blockIdx.x;
    const int f = block;  // of 6
    const int thread = (int)threadIdx.x;
    {
        const int k1_lane = thread;  // of 32
        softmax_sum_rf[k1_lane] = 0.0f;
        for (int k1 = 0; k1 < 4; ++k1) {
            softmax_sum_rf[k1_lane] = softmax_sum_rf[k1_lane] + ((k1 * 32 + k1_lane < 100) ? softmax_exp[f * 100 + k1 * 32 + k1_lane] : 0.0f);
        }
    }
    __syncthreads();
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
extern "C" __global__ __launch_bounds__(128)
void kernel_softmax(float *__restrict__ softmax, unsigned char *__restrict__ workspace)
{
    const float *__restrict__ softmax_exp = (const float *)(workspace + 64);  // softmax_exp: float32[6, 100]
    const float *__restrict__ softmax_sum = (const float *)(workspace + 2496);  // softmax_sum: float32[6, 1]
    const int block = (int)blockIdx.x;
    const int f_0 = block;  // of 2
    const int thread = (int)threadIdx.x;
    {
        const int f_1 = thread;  // of 128
        const int i0 = min(f_0 * 128, 22);
        const int i1 = (i0 + f_1) / 25;
        const int i2 = (i0 + f_1) % 25;
        *(float4 *)&softmax[i1 * 100 + i2 * 4] = make_float4((softmax_exp[i1 * 100 + i2 * 4] * (1.0f / softmax_sum[i1])), (softmax_exp[i1 * 100 + i2 * 4 + 1] * (1.0f / softmax_sum[i1])), (softmax_exp[i1 * 100 + i2 * 4 + 2] * (1.0f / softmax_sum[i1])), (softmax_exp[i1 * 100 + i2 * 4 + 3] * (1.0f / softmax_sum[i1])));
    }
}
