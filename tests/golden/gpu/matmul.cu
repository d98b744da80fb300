// matmul: 1048576 floating-point operations

// matmul: 4 blocks of 128 threads
//   input A: float32[64, 64]
//   input B: float32[64, 128]
//   output matmul: float32[64, 128]
extern "C" __global__ __launch_bounds__(128)
void kernel_matmul(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ matmul)
{
    __shared__ __align__(16) float A_shared[32][8];  // A.shared: float32[32, 8]
    __shared__ __align__(16) float B_shared[8][64];  // B.shared: float32[8, 64]
    const int block = (int)blockIdx.x;
    const int i_0 = block / 2;  // of 2
    const int j_0 = block % 2;  // of 2
    const int thread = (int)threadIdx.x;
    float matmul_acc[2][2][4];
    {
        const int i_2_init = thread / 16;  // of 8
        const int j_2_init = thread % 16;  // of 16
        #pragma unroll
        for (int i_1_init = 0; i_1_init < 2; ++i_1_init) {
            #pragma unroll
            for (int i_3_init = 0; i_3_init < 2; ++i_3_init) {
                #pragma unroll
                for (int j_4_init = 0; j_4_init < 4; ++j_4_init) {
                    matmul_acc[i_1_init][i_3_init][j_4_init] = 0.0f;
                }
            }
        }
    }
    #pragma unroll 1
    for (int k_0 = 0; k_0 < 8; ++k_0) {
        __syncthreads();
        {
            const int f_1 = thread;  // of 128
            if (f_1 < 64) {
                const int i0 = f_1 / 2;
                const int i1 = f_1 % 2;
                *(float4 *)&A_shared[i0][i1 * 4] = *(float4 const *)&A[i_0 * 2048 + i0 * 64 + k_0 * 8 + i1 * 4];
            }
        }
        {
            const int f_1 = thread;  // of 128
            const int i0 = f_1 / 16;
            const int i1 = f_1 % 16;
            *(float4 *)&B_shared[i0][i1 * 4] = *(float4 const *)&B[k_0 * 1024 + i0 * 128 + j_0 * 64 + i1 * 4];
        }
        __syncthreads();
        const int i_2 = thread / 16;  // of 8
        const int j_2 = thread % 16;  // of 16
        for (int k_1 = 0; k_1 < 4; ++k_1) {
            #pragma unroll
            for (int i_1 = 0; i_1 < 2; ++i_1) {
                #pragma unroll
                for (int i_3 = 0; i_3 < 2; ++i_3) {
                    #pragma unroll
                    for (int k_2 = 0; k_2 < 2; ++k_2) {
                        #pragma unroll
                        for (int j_4 = 0; j_4 < 4; ++j_4) {
                            matmul_acc[i_1][i_3][j_4] = matmul_acc[i_1][i_3][j_4] + (A_shared[i_2 * 2 + i_1 * 16 + i_3][k_1 * 2 + k_2] * B_shared[k_1 * 2 + k_2][j_2 * 4 + j_4]);
                        }
                    }
                }
            }
        }
    }
    {
        const int i_2 = thread / 16;  // of 8
        const int j_2 = thread % 16;  // of 16
        #pragma unroll
        for (int i_1 = 0; i_1 < 2; ++i_1) {
            #pragma unroll
            for (int i_3 = 0; i_3 < 2; ++i_3) {
                *(float4 *)&matmul[i_0 * 4096 + i_2 * 256 + i_1 * 2048 + i_3 * 128 + j_0 * 64 + j_2 * 4] = make_float4(matmul_acc[i_1][i_3][0], matmul_acc[i_1][i_3][1], matmul_acc[i_1][i_3][2], matmul_acc[i_1][i_3][3]);
            }
        }
    }
}
