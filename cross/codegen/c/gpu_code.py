"""The program of one kernel for a GPU target: source text, launches, and that the board can run them."""

from __future__ import annotations

from boards.target import Target
from cross.codegen.c.cuda import CUDA_C
from cross.codegen.c.family import Program, c_program
from cross.codegen.c.opencl import OPENCL_C
from cross.errors import CompileError
from cross.loopnest.nodes import LoopNest
from device_runtime.protocol import WORKSPACE, GpuKernel, GpuModule, Launch

DIALECTS = {dialect.language: dialect for dialect in (OPENCL_C, CUDA_C)}
"""By kind of target: a further language for GPUs is a Dialect of its own file, and named here."""


def gpu_program(symbol: str, nest: LoopNest, target: Target) -> Program:
    """The program of a kernel in the language of the target.

    Raises:
        CompileError: the nest is not bound, or asks for more than the board has.
    """
    limits = target.gpu
    if limits is None:
        known = " or ".join(DIALECTS)
        raise CompileError(f"target {target.name} is of kind {target.kind!r}, expected {known}")
    program = c_program(symbol, nest, DIALECTS[target.kind])
    for function in program.functions:
        for what, found, limit in (
            ("threads a block", function.threads, limits.threads_of_a_launch),
            ("bytes of shared memory", function.shared_bytes, limits.shared_memory_bytes),
        ):
            if found > limit:
                raise CompileError(f"{function.name}: {found} {what}, {target.name} has at most {limit}")
    return program


def gpu_module(symbol: str, nest: LoopNest, target: Target) -> GpuModule:
    """A module of one kernel, its source compiled for the target where that is done before it is loaded.

    Raises:
        CompileError: as `gpu_program`, or the code is refused; NvrtcMissing where a CUDA target needs it.
    """
    program = gpu_program(symbol, nest, target)
    return GpuModule(target.kind, {symbol: _kernel(program, compiled(program, target))})


def compiled(program: Program, target: Target) -> str | bytes:
    """What the board loads of a program: its source, or what the dialect's compiler makes of it."""
    assert target.gpu is not None  # `gpu_program` refuses others
    return DIALECTS[target.kind].compiled(program.source, target.gpu)


def _kernel(program: Program, code: str | bytes) -> GpuKernel:
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
