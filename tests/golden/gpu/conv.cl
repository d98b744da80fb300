// conv: 364416 floating-point operations
static inline float4 max_float4(float4 a, float4 b) { return ((a < b) | (b != b)) ? b : a; }

// relu: 21 blocks of 16 threads
//   input X: float32[1, 13, 12, 8]
//   constant W: float32[1, 3, 1, 2, 4, 1, 3, 2, 1, 1, 1, 1, 2, 4] packed from [3, 3, 8, 16] as (dim3*16, dim0*1, dim1*3, dim2*4, dim3*4, dim0*1, dim1*1, dim2*2, dim3*16, dim3*4, dim0*1, dim1*1, dim2*1, dim3*1)
//   constant b: float32[16]
//   output relu: float32[1, 13, 12, 16]
__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void kernel_relu(__global const float *restrict X, __global const float *restrict W, __global const float *restrict b, __global float *restrict relu)
{
    const int block = get_group_id(0);
    const int i1_0 = block / 3;  // of 7
    const int i2_0 = block % 3;  // of 3
    const int thread = get_local_id(0);
    float4 conv[2];
    {
        const int y_2_init = thread / 8;  // of 2
        const int x_2_init = thread / 4 % 2;  // of 2
        const int c_2_init = thread % 4;  // of 4
        #pragma unroll
        for (int x_3_init = 0; x_3_init < 2; ++x_3_init) {
            conv[x_3_init] = (float4)(0.0f);
        }
    }
    for (int kh_0 = 0; kh_0 < 3; ++kh_0) {
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
                            conv[x_3] = conv[x_3] + (((1 <= i0 + y_2 + kh_0 && i0 + y_2 + kh_0 < 14 && 1 <= i2_0 * 4 + x_2 * 2 + x_3 + kw_1 && i2_0 * 4 + x_2 * 2 + x_3 + kw_1 < 13) ? X[i0 * 96 + y_2 * 96 + kh_0 * 96 + i2_0 * 32 + x_2 * 16 + x_3 * 8 + kw_1 * 8 + kc_0 * 4 + kc_1 * 2 + kc_2 - 104] : 0.0f) * vload4(0, &W[kh_0 * 384 + kc_0 * 192 + c_2 * 48 + kw_1 * 16 + kc_1 * 8 + kc_2 * 4]));
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
            vstore4(max_float4(conv[i2_3] + vload4(0, &b[i3_2 * 4]), (float4)(0.0f)), 0, &relu[i0 * 192 + i1_2 * 192 + i2_0 * 64 + i2_2 * 32 + i2_3 * 16 + i3_2 * 4]);
        }
    }
}
