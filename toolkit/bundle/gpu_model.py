"""A model plan for a GPU as one GpuModel: its kernels as one module, its parameters, and its steps.

For OpenCL that is always source; what a board's driver makes of it is kept on the board alone. For CUDA it
is cubins.
"""

from __future__ import annotations

from device_runtime.protocol import GpuBuffer, GpuModel, GpuModule, merged
from toolkit.bundle.model_plan import BufferRef, ModelPlan, PlannedKernel


def gpu_model(model_plan: ModelPlan) -> GpuModel:
    """What the board's runtime loads; the plan's kernels are modules of one kernel each."""
    kernels = {kernel.symbol: kernel for kernel in model_plan.kernels}
    model = GpuModel(
        module=merged([GpuModule.from_bytes(kernel.code) for kernel in model_plan.kernels]),
        parameters=model_plan.parameters,
        arena_bytes=model_plan.arena_bytes,
        inputs=tuple(spec.size_bytes for spec in model_plan.inputs),
        outputs=tuple(spec.size_bytes for spec in model_plan.outputs),
        steps=tuple((step.symbol, _buffers(step.buffers, kernels[step.symbol])) for step in model_plan.steps),
    )
    model.check()
    return model


def _buffers(refs: tuple[BufferRef, ...], kernel: PlannedKernel) -> tuple[GpuBuffer, ...]:
    return tuple(
        (ref.kind, ref.at, size_bytes) for ref, size_bytes in zip(refs, kernel.argument_bytes, strict=True)
    )
