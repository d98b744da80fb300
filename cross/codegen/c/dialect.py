"""What OpenCL C and CUDA C say differently. family.py writes the rest, which is the same in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from boards.target import GpuLimits


class Dialect(msgspec.Struct, frozen=True):
    """The words of one language; templates name their parts in braces."""

    language: str  # of device_runtime's GpuModule: the kind of target
    compiled: Callable[[str, GpuLimits], str | bytes]  # what a board loads of a source
    kernel: str  # what stands before the parameters: {name}, {threads}
    pointer: str  # a parameter: {qualifier}, {type}, {name}
    workspace: str  # the parameter of the workspace
    cast: str  # a buffer in the workspace: {qualifier}, {type}, {name}, {offset}
    shared: str  # before a declaration in shared memory
    block: str  # number of the block
    thread: str  # number of the thread in its block
    helper: str  # before a function that kernels call
    steps: str  # before a loop around loops over threads, where compilers would write it out with all inside
    barrier: str  # for shared memory
    barrier_for_all: str  # for shared and global memory
    constant: str  # before a table of constants
    infinity: Mapping[str, str]  # by dtype
    types: Mapping[str, str]  # of values, by dtype
    stored: Mapping[str, str]  # of elements in memory, where it is another one
    load: Mapping[str, str]  # by dtype of `stored`: {space}, {lanes} ("": a scalar), {address}
    store: Mapping[str, str]  # the same with a {value}
    function_suffixes: Mapping[str, str]  # by dtype: what names of mathematical functions end with
    functions: Mapping[str, str]  # operations on two int32 that have a function of their own: its definition
    # by operator and type: the body of a function of a and b that rounds as IEEE 754 does
    rounded: Mapping[tuple[str, str], str]
    # by a narrow and a wide type, where a cast will not do: the body of a function that widens its argument a
    widened: Mapping[tuple[str, str], str]
    preludes: Mapping[str, str]  # by dtype: what must stand before its first use
    vectors: bool  # whether arithmetic runs on vectors; otherwise only loads and stores do
    load_vector: str  # {type}, {lanes}, {address}
    store_vector: str  # {type}, {lanes}, {address}, {value}
    make_vector: str  # {type}, {lanes}, {items}
    vector_alignment: bool  # whether a vector in memory must lie at a multiple of its size


KEYWORDS = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void",
    "volatile", "while", "bool", "half", "kernel", "global", "local", "constant", "private", "uchar",
    "ushort", "uint", "ulong", "class", "new", "delete", "this", "template", "operator", "namespace",
    "public", "protected", "true", "false", "try", "catch", "throw", "using", "virtual", "friend",
    "typename", "and", "or", "not", "xor", "main", "block", "thread", "workspace", "barrier", "floor_div",
    "floor_mod", "sdot4", "sdot4_2", "sdot4_4", "sdot4_8", "sdot4_16",
    *(
        f"{op}_{kind}{lanes}"
        for op in ("min", "max") for kind in ("char", "int", "long", "float", "double")
        for lanes in ("", 2, 4, 8, 16)
    ),
})  # fmt: skip
