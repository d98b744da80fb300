"""CUDA C, as NVRTC takes it: no headers, no standard library."""

from __future__ import annotations

from cross.codegen.c.dialect import Dialect
from cross.nvrtc import compile_cubin

_INTEGERS = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "bool": "unsigned char",
}

_HALF = """\
__device__ static inline float of_half(unsigned short half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}
__device__ static inline unsigned short to_half(float value) {
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
}
__device__ static inline float load_half(const unsigned short *place) { return of_half(*place); }
__device__ static inline float2 load_half2(const unsigned short *place) {
    const ushort2 half = *(const ushort2 *)place;
    return make_float2(of_half(half.x), of_half(half.y));
}
__device__ static inline float4 load_half4(const unsigned short *place) {
    const ushort4 half = *(const ushort4 *)place;
    return make_float4(of_half(half.x), of_half(half.y), of_half(half.z), of_half(half.w));
}
struct float8 { float4 low, high; };
__device__ static inline float8 make_float8(
    float a, float b, float c, float d, float e, float f, float g, float h) {
    const float8 value = {make_float4(a, b, c, d), make_float4(e, f, g, h)};
    return value;
}
__device__ static inline float8 load_half8(const unsigned short *place) {
    const uint4 two = *(const uint4 *)place;
    return make_float8(
        of_half(two.x), of_half(two.x >> 16), of_half(two.y), of_half(two.y >> 16),
        of_half(two.z), of_half(two.z >> 16), of_half(two.w), of_half(two.w >> 16));
}
__device__ static inline unsigned to_two_halves(float first, float second) {
    return to_half(first) | (unsigned)to_half(second) << 16;
}
__device__ static inline void store_half8(unsigned short *place, float8 value) {
    const float4 low = value.low, high = value.high;
    *(uint4 *)place = make_uint4(
        to_two_halves(low.x, low.y), to_two_halves(low.z, low.w),
        to_two_halves(high.x, high.y), to_two_halves(high.z, high.w));
}
__device__ static inline void store_half(unsigned short *place, float value) { *place = to_half(value); }
__device__ static inline void store_half2(unsigned short *place, float2 value) {
    *(ushort2 *)place = make_ushort2(to_half(value.x), to_half(value.y));
}
__device__ static inline void store_half4(unsigned short *place, float4 value) {
    *(ushort4 *)place = make_ushort4(to_half(value.x), to_half(value.y), to_half(value.z), to_half(value.w));
}"""

# GPUs of compute capability 6.1 and later have an instruction for it.
_DOT = """int sdot4(int x, int w) {
#if __CUDA_ARCH__ >= 610
    return __dp4a(x, w, 0);
#else
    int sum = 0;
    #pragma unroll
    for (int shift = 0; shift < 32; shift += 8)
        sum += (signed char)(x >> shift) * (signed char)(w >> shift);
    return sum;
#endif
}"""

# NVVM turns sums of products of bytes into dp4a and dp2a by itself, and gets dp2a wrong: it hands over four
# bytes where the instruction reads two 16-bit numbers. Seen in PTX by CUDA 12.9, 13.0 and 13.5 for compute
# capability 6.1, 7.5, 8.7 and 9.0, and in a wrong result on an H100. Behind an asm it cannot see that a
# number was a byte.
_WIDENED = """{{
#ifdef __CUDA_ARCH__
    int wide;
    asm("cvt.{wide}.{narrow} %0, %1;" : "=r"(wide) : "h"((short)a));
    return wide;
#else
    return a;
#endif
}}"""

CUDA_C = Dialect(
    language="cuda",
    compiled=lambda source, limits: compile_cubin(source, limits.compute_capability),
    kernel='extern "C" __global__ __launch_bounds__({threads})\nvoid {name}',
    pointer="{qualifier}{type} *__restrict__ {name}",
    workspace="unsigned char *__restrict__ workspace",
    cast="{qualifier}{type} *__restrict__ {name} = ({qualifier}{type} *)(workspace + {offset});",
    shared="__shared__ __align__(16) ",
    block="(int)blockIdx.x",
    thread="(int)threadIdx.x",
    helper="__device__ static inline ",
    steps="#pragma unroll 1",
    barrier="__syncthreads();",
    barrier_for_all="__syncthreads();",
    constant="__constant__ const ",
    infinity={
        "float16": "__int_as_float(0x7f800000)",
        "float32": "__int_as_float(0x7f800000)",
        "float64": "__longlong_as_double(0x7ff0000000000000LL)",
    },
    types={
        **_INTEGERS,
        "bfloat16": "unsigned short",
        "float16": "float",
        "float32": "float",
        "float64": "double",
    },
    stored={"float16": "unsigned short"},
    load={"float16": "load_half{lanes}({address})"},
    store={"float16": "store_half{lanes}({address}, {value});"},
    function_suffixes={"float16": "f", "float32": "f"},
    functions={"sdot4": _DOT},
    rounded={
        ("*", "float"): "{ return __fmul_rn(a, b); }",
        ("*", "double"): "{ return __dmul_rn(a, b); }",
        ("/", "float"): "{ return __fdiv_rn(a, b); }",
        ("/", "double"): "{ return __ddiv_rn(a, b); }",
    },
    widened={
        ("signed char", "int"): _WIDENED.format(wide="s32", narrow="s8"),
        ("unsigned char", "int"): _WIDENED.format(wide="u32", narrow="u8"),
        ("signed char", "unsigned int"): _WIDENED.format(wide="s32", narrow="s8"),
        ("unsigned char", "unsigned int"): _WIDENED.format(wide="u32", narrow="u8"),
    },
    preludes={"float16": _HALF},
    vectors=False,
    load_vector="*({type}{lanes} const *){address}",
    store_vector="*({type}{lanes} *){address} = {value};",
    make_vector="make_{type}{lanes}({items})",
    vector_alignment=True,
)
