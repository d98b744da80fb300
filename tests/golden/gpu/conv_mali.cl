// conv: 672768 floating-point operations
static inline float4 max_float4(float4 a, float4 b) { return ((a < b) | (b != b)) ? b : a; }

// pad: 4 blocks of 128 threads
//   input X: float32[1, 12, 12, 8]
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void kernel_pad(__global const float *restrict X, __global uchar *restrict workspace)
{
    __global float *restrict pad = (__global float *)(workspace + 0);  // pad: float32[1, 14, 14, 8]
    const int block = get_group_id(0);
    const int f_0 = block;  // of 4
    const int thread = get_local_id(0);
    {
        const int f_1 = thread;  // of 128
        const int i0 = min(f_0 * 128, 264);
        const int i1 = (i0 + f_1) / 2;
        const int i2 = i1 / 14;
        const int i3 = i1 % 14;
        const int i4 = (i0 + f_1) % 2;
        vstore4((1 <= i2 && i2 < 13 && 1 <= i3 && i3 < 13) ? vload4(0, &X[i2 * 96 + i3 * 8 + i4 * 4 - 104]) : (float4)(0.0f), 0, &pad[i2 * 112 + i3 * 8 + i4 * 4]);
    }
}

// relu: 12 blocks of 48 threads
//   constant W: float32[1, 1, 1, 1, 8, 3, 3, 8, 1, 1, 1, 1, 1, 4] packed from [3, 3, 8, 32] as (dim3*32, dim0*3, dim1*3, dim2*8, dim3*4, dim0*1, dim1*1, dim2*1, dim3*32, dim3*4, dim0*1, dim1*1, dim2*1, dim3*1)
//   constant b: float32[32]
//   output relu: float32[1, 12, 12, 32]
__kernel __attribute__((reqd_work_group_size(48, 1, 1)))
void kernel_relu(__global const float *restrict W, __global const float *restrict b, __global float *restrict relu, __global uchar *restrict workspace)
{
    __global const float *restrict pad = (__global const float *)(workspace + 0);  // pad: float32[1, 14, 14, 8]
    const int block = get_group_id(0);
    const int i1_0 = block;  // of 12
    const int thread = get_local_id(0);
    float4 conv[2];
    {
        const int x_2_init = thread / 8;  // of 6
        const int c_2_init = thread % 8;  // of 8
        #pragma unroll
        for (int x_3_init = 0; x_3_init < 2; ++x_3_init) {
            conv[x_3_init] = (float4)(0.0f);
        }
    }
    {
        const int x_2 = thread / 8;  // of 6
        const int c_2 = thread % 8;  // of 8
        for (int kh_1 = 0; kh_1 < 3; ++kh_1) {
            #pragma unroll
            for (int kw_1 = 0; kw_1 < 3; ++kw_1) {
                #pragma unroll
                for (int kc_1 = 0; kc_1 < 8; ++kc_1) {
                    #pragma unroll
                    for (int x_3 = 0; x_3 < 2; ++x_3) {
                        conv[x_3] = conv[x_3] + (pad[i1_0 * 112 + kh_1 * 112 + x_2 * 16 + x_3 * 8 + kw_1 * 8 + kc_1] * vload4(0, &W[c_2 * 288 + kh_1 * 96 + kw_1 * 32 + kc_1 * 4]));
                    }
                }
            }
        }
    }
    {
        const int i2_2 = thread / 8;  // of 6
        const int i3_2 = thread % 8;  // of 8
        #pragma unroll
        for (int i2_3 = 0; i2_3 < 2; ++i2_3) {
            vstore4(max_float4(conv[i2_3] + vload4(0, &b[i3_2 * 4]), (float4)(0.0f)), 0, &relu[i1_0 * 384 + i2_2 * 64 + i2_3 * 32 + i3_2 * 4]);
        }
    }
}
