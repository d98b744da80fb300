// conv: 364416 floating-point operations
__device__ static inline float max_float(float a, float b) { return ((a < b) | (b != b)) ? b : a; }

// relu: 21 blocks of 16 threads
//   input X: float32[1, 13, 12, 8]
//   constant W: float32[1, 3, 1, 2, 4, 1, 3, 2, 1, 1, 1, 1, 2, 4] packed from [3, 3, 8, 16] as (dim3*16, dim0*1, dim1*3, dim2*4, dim3*4, dim0*1, dim1*1, dim2*2, dim3*16, dim3*4, dim0*1, dim1*1, dim2*1, dim3*1)
//   constant b: float32[16]
//   output relu: float32[1, 13, 12, 16]
extern "C" __global__ __launch_bounds__(16)
void kernel_relu(const float *__restrict__ X, const float *__restrict__ W, const float *__restrict__ b, float *__restrict__ relu)
{
    const int block = (int)blockIdx.x;
    const int i1_0 = block / 3;  // of 7
    const int i2_0 = block % 3;  // of 3
    const int thread = (int)threadIdx.x;
    float conv[2][4];
    {
        const int y_2_init = thread / 8;  // of 2
        const int x_2_init = thread / 4 % 2;  // of 2
        const int c_2_init = thread % 4;  // of 4
        #pragma unroll
        for (int x_3_init = 0; x_3_init < 2; ++x_3_init) {
            #pragma unroll
            for (int c_4_init = 0; c_4_init < 4; ++c_4_init) {
                conv[x_3_init][c_4_init] = 0.0f;
            }
        }
    }
    #pragma unroll 1
    for (int kh_0 = 0; kh_0 < 3; ++kh_0) {
        #pragma unroll 1
        for (int kc_0 = 0; kc_0 < 2; ++kc_0) {
            const int y_2 = thread / 8;  // of 2
            const int x_2 = thread / 4 % 2;  // of 2
            const int c_2 = thread % 4;  // of 4
            for (int kw_1 = 0; kw_1 < 3; ++kw_1) {
                #pragma unroll
                for (int kc_1 = 0; kc_1 < 2; ++kc_1) {
                    #pragma unroll
                    for (int x_3 = 0; x_3 < 2; ++x_3) {
                        #pragma unroll
                        for (int kc_2 = 0; kc_2 < 2; ++kc_2) {
                            const int i0 = min(i1_0 * 2, 11);
                            const float read = (1 <= i0 + y_2 + kh_0 && i0 + y_2 + kh_0 < 14 && 1 <= i2_0 * 4 + x_2 * 2 + x_3 + kw_1 && i2_0 * 4 + x_2 * 2 + x_3 + kw_1 < 13) ? X[i0 * 96 + y_2 * 96 + kh_0 * 96 + i2_0 * 32 + x_2 * 16 + x_3 * 8 + kw_1 * 8 + kc_0 * 4 + kc_1 * 2 + kc_2 - 104] : 0.0f;
                            #pragma unroll
                            for (int c_4 = 0; c_4 < 4; ++c_4) {
                                conv[x_3][c_4] = conv[x_3][c_4] + (read * W[kh_0 * 384 + kc_0 * 192 + c_2 * 48 + kw_1 * 16 + kc_1 * 8 + kc_2 * 4 + c_4]);
                            }
                        }
                    }
                }
            }
        }
    }
    {
        const int i1_2 = thread / 8;  // of 2
        const int i2_2 = thread / 4 % 2;  // of 2
        const int i3_2 = thread % 4;  // of 4
        #pragma unroll
        for (int i2_3 = 0; i2_3 < 2; ++i2_3) {
            const int i0 = min(i1_0 * 2, 11);
            *(float4 *)&relu[i0 * 192 + i1_2 * 192 + i2_0 * 64 + i2_2 * 32 + i2_3 * 16 + i3_2 * 4] = make_float4(max_float(conv[i2_3][0] + b[i3_2 * 4], 0.0f), max_float(conv[i2_3][1] + b[i3_2 * 4 + 1], 0.0f), max_float(conv[i2_3][2] + b[i3_2 * 4 + 2], 0.0f), max_float(conv[i2_3][3] + b[i3_2 * 4 + 3], 0.0f));
        }
    }
}
