// matmul: 1048576 floating-point operations

// matmul: 4 blocks of 128 threads
//   input A: float32[64, 64]
//   input B: float32[64, 128]
//   output matmul: float32[64, 128]
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void kernel_matmul(__global const float *restrict A, __global const float *restrict B, __global float *restrict matmul)
{
    __local float A_shared[32][8];  // A.shared: float32[32, 8]
    __local float B_shared[8][64];  // B.shared: float32[8, 64]
    const int block = get_group_id(0);
    const int i_0 = block / 2;  // of 2
    const int j_0 = block % 2;  // of 2
    const int thread = get_local_id(0);
    float4 matmul_acc[2][2];
    {
        const int i_2_init = thread / 16;  // of 8
        const int j_2_init = thread % 16;  // of 16
        #pragma unroll
        for (int i_1_init = 0; i_1_init < 2; ++i_1_init) {
            #pragma unroll
            for (int i_3_init = 0; i_3_init < 2; ++i_3_init) {
                matmul_acc[i_1_init][i_3_init] = (float4)(0.0f);
            }
        }
    }
    for (int k_0 = 0; k_0 < 8; ++k_0) {
        barrier(CLK_LOCAL_MEM_FENCE);
        {
            const int f_1 = thread;  // of 128
            if (f_1 < 64) {
                const int i0 = f_1 / 2;
                const int i1 = f_1 % 2;
                vstore4(vload4(0, &A[i_0 * 2048 + i0 * 64 + k_0 * 8 + i1 * 4]), 0, &A_shared[i0][i1 * 4]);
            }
        }
        {
            const int f_1 = thread;  // of 128
            const int i0 = f_1 / 16;
            const int i1 = f_1 % 16;
            vstore4(vload4(0, &B[k_0 * 1024 + i0 * 128 + j_0 * 64 + i1 * 4]), 0, &B_shared[i0][i1 * 4]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        const int i_2 = thread / 16;  // of 8
        const int j_2 = thread % 16;  // of 16
        for (int k_1 = 0; k_1 < 4; ++k_1) {
            #pragma unroll
            for (int i_1 = 0; i_1 < 2; ++i_1) {
                #pragma unroll
                for (int i_3 = 0; i_3 < 2; ++i_3) {
                    #pragma unroll
                    for (int k_2 = 0; k_2 < 2; ++k_2) {
                        matmul_acc[i_1][i_3] = matmul_acc[i_1][i_3] + (A_shared[i_2 * 2 + i_1 * 16 + i_3][k_1 * 2 + k_2] * vload4(0, &B_shared[k_1 * 2 + k_2][j_2 * 4]));
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
                vstore4(matmul_acc[i_1][i_3], 0, &matmul[i_0 * 4096 + i_2 * 256 + i_1 * 2048 + i_3 * 128 + j_0 * 64 + j_2 * 4]);
            }
        }
    }
}
