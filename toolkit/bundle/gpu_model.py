"""A model plan for a GPU as one GpuModel: its kernels as one module, its parameters, and its steps.

For OpenCL that is always source; what a board's driver makes of it is kept on the board alone. For CUDA it
is cubins.
"""

from __future__ import annotations

from collections.abc import Mapping

from device_runtime.protocol import (
    GpuBuffer,
    GpuCall,
    GpuChoice,
    GpuCopy,
    GpuLoop,
    GpuModel,
    GpuModule,
    GpuStep,
    merged,
)
from toolkit.bundle.model_plan import BufferRef, Choice, Copy, Loop, ModelPlan, PlanStep, Step


def gpu_model(model_plan: ModelPlan) -> GpuModel:
    """What the board's runtime loads; the plan's kernels are modules of one kernel each."""
    sizes = {kernel.symbol: kernel.argument_bytes for kernel in model_plan.kernels}
    model = GpuModel(
        module=merged([GpuModule.from_bytes(kernel.code) for kernel in model_plan.kernels]),
        parameters=model_plan.parameters,
        arena_bytes=model_plan.arena_bytes,
        inputs=tuple(spec.size_bytes for spec in model_plan.inputs),
        outputs=tuple(spec.size_bytes for spec in model_plan.outputs),
        steps=_steps(model_plan.steps, sizes),
    )
    model.check()
    return model


def _steps(steps: tuple[PlanStep, ...], sizes: Mapping[str, tuple[int, ...]]) -> tuple[GpuStep, ...]:
    """`sizes` are those of each kernel's buffers, in bytes."""
    return tuple(_step(step, sizes) for step in steps)


def _step(step: PlanStep, sizes: Mapping[str, tuple[int, ...]]) -> GpuStep:
    match step:
        case Step(symbol, refs):
            return GpuCall(
                symbol,
                tuple(_buffer(ref, size_bytes) for ref, size_bytes in zip(refs, sizes[symbol], strict=True)),
            )
        case Copy(source, target, size_bytes):
            return GpuCopy(_buffer(source, size_bytes), _buffer(target, size_bytes))
        case Loop(count, inner, condition):
            tested = None if condition is None else _buffer(condition, 1)
            return GpuLoop(count, tested, _steps(inner, sizes))
        case Choice(condition, then, otherwise):
            return GpuChoice(_buffer(condition, 1), _steps(then, sizes), _steps(otherwise, sizes))


def _buffer(ref: BufferRef, size_bytes: int) -> GpuBuffer:
    return GpuBuffer(ref.kind, ref.at, size_bytes, ref.offset, ref.strides)
