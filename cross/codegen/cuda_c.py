"""CUDA C, as NVRTC takes it: no headers, no standard library."""

from __future__ import annotations

from cross.codegen.c_dialect import INTEGER_FUNCTIONS, Dialect, float_functions

_INTEGERS = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "bool": "unsigned char",
}

_HALF = """\
__device__ static inline float load_half(const unsigned short *place) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*place));
    return value;
}
__device__ static inline void store_half(unsigned short *place, float value) {
    unsigned short half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    *place = half;
}"""

CUDA_C = Dialect(
    language="cuda",
    kernel='extern "C" __global__ __launch_bounds__({threads})\nvoid {name}',
    pointer="{qualifier}{type} *__restrict__ {name}",
    workspace="unsigned char *__restrict__ workspace",
    cast="{qualifier}{type} *__restrict__ {name} = ({qualifier}{type} *)(workspace + {offset});",
    shared="__shared__ __align__(16) ",
    block="(int)blockIdx.x",
    thread="(int)threadIdx.x",
    barrier="__syncthreads();",
    constant="__constant__ const ",
    infinity={
        "float16": "__int_as_float(0x7f800000)",
        "float32": "__int_as_float(0x7f800000)",
        "float64": "__longlong_as_double(0x7ff0000000000000LL)",
    },
    types={**_INTEGERS, "float16": "float", "float32": "float", "float64": "double"},
    stored={"float16": "unsigned short"},
    load={"float16": "load_half({address})"},
    store={"float16": "store_half({address}, {value});"},
    functions={
        **dict.fromkeys(("float16", "float32"), float_functions("f")),
        "float64": float_functions(""),
        **dict.fromkeys(_INTEGERS, INTEGER_FUNCTIONS),
    },
    preludes={"float16": _HALF},
    vectors=False,
    load_vector="*({type}{lanes} const *){address}",
    store_vector="*({type}{lanes} *){address} = {value};",
    make_vector="make_{type}{lanes}({items})",
    vector_alignment=True,
)
