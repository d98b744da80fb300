// softmax: 3600 floating-point operations
__device__ static inline float max_float(float a, float b) { return ((a < b) | (b != b)) ? b : a; }

// softmax: 2 blocks of 128 threads
//   input X: float32[6, 100]
//   output softmax: float32[6, 100]
extern "C" __global__ __launch_bounds__(128)
void kernel_softmax(const float *__restrict__ X, float *__restrict__ softmax)
{
    __shared__ __align__(16) float softmax_max_rf[4][32];  // softmax_max.rf: float32[4, 1, 32]
    __shared__ __align__(16) float softmax_max[4];  // softmax_max: float32[4, 1]
    __shared__ __align__(16) float softmax_exp[4][100];  // softmax_exp: float32[4, 100]
    __shared__ __align__(16) float softmax_sum_rf[4][32];  // softmax_sum.rf: float32[4, 1, 32]
    __shared__ __align__(16) float softmax_sum[4];  // softmax_sum: float32[4, 1]
    const int block = (int)blockIdx.x;
    const int i0_0 = block;  // of 2
    const int thread = (int)threadIdx.x;
    {
        const int i0 = thread / 32;  // of 4
        const int k1_lane = thread % 32;  // of 32
        float softmax_max_rf_acc;
        softmax_max_rf_acc = -__int_as_float(0x7f800000);
        #pragma unroll
        for (int k1 = 0; k1 < 4; ++k1) {
            const int i0_2 = min(i0_0 * 4, 2);
            softmax_max_rf_acc = max_float(softmax_max_rf_acc, (k1 * 32 + k1_lane < 100) ? X[i0_2 * 100 + i0 * 100 + k1 * 32 + k1_lane] : (-__int_as_float(0x7f800000)));
        }
        softmax_max_rf[i0][k1_lane] = softmax_max_rf_acc;
    }
    __syncthreads();
    if (thread < 4) {
        const int i0 = thread;  // of 4
        float softmax_max_acc;
        softmax_max_acc = -__int_as_float(0x7f800000);
        #pragma unroll
        for (int k1_lane = 0; k1_lane < 32; ++k1_lane) {
            softmax_max_acc = max_float(softmax_max_acc, softmax_max_rf[i0][k1_lane]);
        }
        softmax_max[i0] = softmax_max_acc;
    }
    __syncthreads();
    {
        const int i0 = thread / 32;  // of 4
        const int f_1 = thread % 32;  // of 32
        if (f_1 < 25) {
            const int i0_2 = min(i0_0 * 4, 2);
            const int i1 = min(f_1 * 4, 96);
            *(float4 *)&softmax_exp[i0][i1] = make_float4(expf((X[i0_2 * 100 + i0 * 100 + i1] - softmax_max[i0])), expf((X[i0_2 * 100 + i0 * 100 + i1 + 1] - softmax_max[i0])), expf((X[i0_2 * 100 + i0 * 100 + i1 + 2] - softmax_max[i0])), expf((X[i0_2 * 100 + i0 * 100 + i1 + 3] - softmax_max[i0])));
        }
    }
    __syncthreads();
    {
        const int i0 = thread / 32;  // of 4
        const int k1_lane = thread % 32;  // of 32
        float softmax_sum_rf_acc;
        softmax_sum_rf_acc = 0.0f;
        #pragma unroll
        for (int k1 = 0; k1 < 4; ++k1) {
            softmax_sum_rf_acc = softmax_sum_rf_acc + ((k1 * 32 + k1_lane < 100) ? softmax_exp[i0][k1 * 32 + k1_lane] : 0.0f);
        }
        softmax_sum_rf[i0][k1_lane] = softmax_sum_rf_acc;
    }
    __syncthreads();
    if (thread < 4) {
        const int i0 = thread;  // of 4
        float softmax_sum_acc;
        softmax_sum_acc = 0.0f;
        #pragma unroll
        for (int k1_lane = 0; k1_lane < 32; ++k1_lane) {
            softmax_sum_acc = softmax_sum_acc + softmax_sum_rf[i0][k1_lane];
        }
        softmax_sum[i0] = softmax_sum_acc;
    }
    __syncthreads();
    {
        const int i0_1 = thread / 32;  // of 4
        const int f_1 = thread % 32;  // of 32
        if (f_1 < 25) {
            const int i0 = min(f_1 * 4, 96);
            const int i1 = min(i0_0 * 4, 2);
            *(float4 *)&softmax[i1 * 100 + i0_1 * 100 + i0] = make_float4((softmax_exp[i0_1][i0] * (1.0f / softmax_sum[i0_1])), (softmax_exp[i0_1][i0 + 1] * (1.0f / softmax_sum[i0_1])), (softmax_exp[i0_1][i0 + 2] * (1.0f / softmax_sum[i0_1])), (softmax_exp[i0_1][i0 + 3] * (1.0f / softmax_sum[i0_1])));
        }
    }
}
