"""The program of one kernel for a GPU target: source text, launches, and that the board can run them."""

from __future__ import annotations

from boards.target import Target
from cross.codegen.c.cuda import CUDA_C
from cross.codegen.c.family import Program, c_program
from cross.codegen.c.opencl import OPENCL_C
from cross.errors import CompileError
from cross.loopnest.nodes import LoopNest
from device_runtime.protocol import WORKSPACE, GpuKernel, Launch

DIALECTS = {"opencl": OPENCL_C, "cuda": CUDA_C}


def gpu_program(symbol: str, nest: LoopNest, target: Target) -> Program:
    """The program of a kernel in the language of the target.

    Raises:
        CompileError: the nest is not bound, or asks for more than the board has.
    """
    limits = target.gpu
    if limits is None or target.kind not in DIALECTS:
        raise CompileError(f"target {target.name} is of kind {target.kind!r}, expected opencl or cuda")
    program = c_program(symbol, nest, DIALECTS[target.kind])
    for function in program.functions:
        for what, found, limit in (
            ("threads a block", function.threads, limits.threads_of_a_launch),
            ("bytes of shared memory", function.shared_bytes, limits.shared_memory_bytes),
        ):
            if found > limit:
                raise CompileError(f"{function.name}: {found} {what}, {target.name} has at most {limit}")
    return program


def with_code(program: Program, code: str | bytes) -> GpuKernel:
    """A kernel of a compiled module: its code and how to launch it."""
    launches = tuple(
        Launch(
            function.name,
            (function.blocks, 1, 1),
            (function.threads, 1, 1),
            tuple(WORKSPACE if place is None else place for place in function.arguments),
        )
        for function in program.functions
    )
    return GpuKernel(code, program.workspace_bytes, launches)
