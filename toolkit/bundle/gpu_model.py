"""A model plan for a GPU as one GpuModel: its kernels as one module, its parameters, and its steps.

For OpenCL that is always source; what a board's driver makes of it is kept on the board alone. For CUDA it
is cubins.
"""

from __future__ import annotations

from device_runtime.protocol import GpuBuffer, GpuModel, GpuModule, merged
from toolkit.bundle.model_plan import BufferRef, ModelPlan, PlannedKernel, Step
from toolkit.errors import InputError


def gpu_model(model_plan: ModelPlan) -> GpuModel:
    """What the board's runtime loads; the plan's kernels are modules of one kernel each.

    Raises InputError for a plan with loops or choices.
    """
    calls = [step for step in model_plan.steps if isinstance(step, Step)]
    if len(calls) < len(model_plan.steps):
        other = next(step for step in model_plan.steps if not isinstance(step, Step))
        raise InputError(
            f"model {model_plan.name!r}: {other.layer!r} is a loop or a choice, which a GPU does not run; "
            "tune the model for a CPU target of the board"
        )
    kernels = {kernel.symbol: kernel for kernel in model_plan.kernels}
    model = GpuModel(
        module=merged([GpuModule.from_bytes(kernel.code) for kernel in model_plan.kernels]),
        parameters=model_plan.parameters,
        arena_bytes=model_plan.arena_bytes,
        inputs=tuple(spec.size_bytes for spec in model_plan.inputs),
        outputs=tuple(spec.size_bytes for spec in model_plan.outputs),
        steps=tuple((step.symbol, _buffers(step.buffers, kernels[step.symbol])) for step in calls),
    )
    model.check()
    return model


def _buffers(refs: tuple[BufferRef, ...], kernel: PlannedKernel) -> tuple[GpuBuffer, ...]:
    return tuple(
        (ref.kind, ref.at, size_bytes) for ref, size_bytes in zip(refs, kernel.argument_bytes, strict=True)
    )
