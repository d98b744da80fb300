"""OpenCL C 1.2."""

from __future__ import annotations

from cross.codegen.c.dialect import Dialect

_INTEGERS = {
    "int8": "char",
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "bool": "uchar",
}

# By the device's instruction where it has one: cl_khr_integer_dot_product, then Arm's extension of Mali GPUs.
_DOT = """int sdot4(int x, int w) {
#if defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
    return dot_4x8packed_ss_int(as_uint(x), as_uint(w));
#elif defined(cl_arm_integer_dot_product_int8)
    return arm_dot(as_char4(x), as_char4(w));
#else
    const char4 a = as_char4(x), b = as_char4(w);
    return mad24((int)a.s0, (int)b.s0, mad24((int)a.s1, (int)b.s1, mad24((int)a.s2, (int)b.s2, a.s3 * b.s3)));
#endif
}"""

_PRODUCT = """{
#pragma OPENCL FP_CONTRACT OFF
    return a * b;
}"""
# OpenCL lets quotients of floats be 2.5 units in the last place off: what is left of the dividend mends them.
_QUOTIENT = "{ return select(a / b, fma(fma(-(a / b), b, a), 1.0f / b, a / b), isfinite(a / b)); }"

OPENCL_C = Dialect(
    language="opencl",
    compiled=lambda source, limits: source,  # a board's driver compiles it
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1)))\nvoid {name}",
    pointer="__global {qualifier}{type} *restrict {name}",
    workspace="__global uchar *restrict workspace",
    cast=(
        "__global {qualifier}{type} *restrict {name} = (__global {qualifier}{type} *)(workspace + {offset});"
    ),
    shared="__local ",
    block="get_group_id(0)",
    thread="get_local_id(0)",
    helper="static inline ",
    steps="",
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    barrier_for_all="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    constant="__constant ",
    infinity={"float16": "INFINITY", "float32": "INFINITY", "float64": "(double)INFINITY"},
    # Half floats are only stored: what reads and writes them is in OpenCL C without an extension.
    types={**_INTEGERS, "bfloat16": "ushort", "float16": "float", "float32": "float", "float64": "double"},
    stored={"float16": "ushort"},
    load={"float16": "vload_half{lanes}(0, ({space} const half *){address})"},
    store={"float16": "vstore_half{lanes}_rte({value}, 0, ({space} half *){address});"},
    function_suffixes={},  # functions are overloaded
    functions={"sdot4": _DOT},
    rounded={
        ("*", "float"): _PRODUCT,
        ("*", "double"): _PRODUCT,
        ("/", "float"): _QUOTIENT,
        ("/", "double"): "{ return a / b; }",
    },
    widened={},
    preludes={"float64": "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"},
    vectors=True,
    load_vector="vload{lanes}(0, {address})",
    store_vector="vstore{lanes}({value}, 0, {address});",
    make_vector="({type}{lanes})({items})",
    vector_alignment=False,
)
