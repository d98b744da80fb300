"""Graphs as what a board loads: every operator compiled, linked, and called on this machine."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.compile import compile_object, kernel_of
from cross.loopnest import Programs
from cross.schedule import space_of
from device_runtime.drivers.device import Device
from device_runtime.drivers.gpu_buffers import GuardedBuffer
from device_runtime.drivers.loaded_model import ModelCall
from device_runtime.protocol import GpuModel
from device_runtime.sandbox.guarded_memory import Region
from tests.bundles import host_target
from toolkit.bundle import library
from toolkit.bundle.assemble import OperatorKernel
from toolkit.bundle.gpu_model import gpu_model
from toolkit.bundle.manifest import KernelProvenance
from toolkit.bundle.model_plan import ModelPlan, PlannedKernel
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph
from toolkit.model.memory import ALIGNMENT_BYTES

Array = NDArray[Any]


def kernels(
    graph: Graph,
    rng: np.random.Generator | None = None,
    algorithm: int = 0,
    target: Target | None = None,
) -> dict[str, OperatorKernel]:
    """Every operator compiled for a target, or for this machine, in its default configuration or a drawn one.

    `algorithm` picks the default configuration where there are several algorithms, the last one at most.
    """
    target = target or host_target()
    found: dict[str, OperatorKernel] = {}
    for task in distinct_operators(graph):
        space = space_of(task.operator, target)
        defaults = space.defaults()
        configuration = defaults[min(algorithm, len(defaults) - 1)]
        if rng is not None:
            configuration = space.configuration(space.sample(rng, 1)[0])
        nest = Programs(space).nest(configuration)
        symbol = f"k_{task.operator.key}"
        kernel = kernel_of(symbol, nest)
        provenance = KernelProvenance(symbol=symbol, operator_key=task.operator.key, tuned=False)
        sizes = tuple(item.elements * np.dtype(item.dtype).itemsize for item in kernel.arguments)
        code = compile_object(symbol, nest, target)
        planned = PlannedKernel(code, kernel.workspace_bytes, provenance, sizes)
        packings = tuple(argument.packing for argument in kernel.arguments[:-1])
        found[task.operator.key] = OperatorKernel(planned, packings)
    return found


def run_library(plan: ModelPlan, inputs: dict[str, Array], folder: Path) -> dict[str, Array]:
    """The plan's library called as one kernel, its memory poisoned with NaN before."""
    path = folder / "model.so"
    path.write_bytes(library.build(plan, host_target()).shared_object)
    loaded = ctypes.CDLL(str(path))

    def buffer(size_bytes: int) -> Array:
        memory = np.full(size_bytes + ALIGNMENT_BYTES, 0xFF, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT_BYTES
        return memory[start : start + size_bytes]

    buffers = [buffer(spec.size_bytes) for spec in (*plan.inputs, *plan.outputs)]
    for spec, memory in zip(plan.inputs, buffers, strict=False):
        memory[:] = np.ascontiguousarray(inputs[spec.name], spec.dtype).reshape(-1).view(np.uint8)
    pointers = (ctypes.c_void_p * len(buffers))(*(memory.ctypes.data for memory in buffers))
    workspace = buffer(max(plan.workspace_bytes, 1))
    assert loaded.tfb_model(pointers, ctypes.c_void_p(workspace.ctypes.data), None) == 0
    return {
        spec.name: memory.view(spec.dtype).reshape(spec.shape)
        for spec, memory in zip(plan.outputs, buffers[len(plan.inputs) :], strict=True)
    }


def run_on_device(device: Device, plan: ModelPlan, inputs: dict[str, Array]) -> dict[str, Array]:
    """The plan's GpuModel, as it is read from a bundle, run twice in the memory of a device.

    All that it writes is filled with NaN before it runs, and it writes within its buffers.
    """
    model = GpuModel.from_bytes(gpu_model(plan).to_bytes())
    buffers = [GuardedBuffer(device, size) for size in (*model.inputs, *model.outputs)]
    call = ModelCall(device, model, buffers)
    for spec, buffer in zip(plan.inputs, buffers, strict=False):
        region = Region(spec.size_bytes)
        region.memory[:] = np.ascontiguousarray(inputs[spec.name], spec.dtype).tobytes()
        device.write(buffer.handle, region)
    written = buffers[len(plan.inputs) :]
    for _ in range(2):
        for buffer in (*written, *call.own):
            buffer.fill(0xFF)
        call.run()
    assert [buffer.strayed() for buffer in (*buffers, *call.own)] == [""] * (len(buffers) + 2)
    return {
        spec.name: np.frombuffer(bytes(buffer.content().memory), spec.dtype).reshape(spec.shape)
        for spec, buffer in zip(plan.outputs, written, strict=True)
    }
