"""Graphs as the shared object of a model for this machine: every operator compiled, linked, and called."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.compile import compile_object, kernel_of
from cross.loopnest import Programs
from cross.schedule import cpu_space
from tests.bundles import host_target
from toolkit.bundle import library
from toolkit.bundle.assemble import OperatorKernel
from toolkit.bundle.manifest import KernelProvenance
from toolkit.bundle.model_plan import ALIGNMENT, ModelPlan, PlannedKernel
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph

Array = NDArray[Any]


def kernels(
    graph: Graph, rng: np.random.Generator | None = None, algorithm: int = 0
) -> dict[str, OperatorKernel]:
    """Every operator compiled for this machine in its default configuration, or in a drawn one.

    `algorithm` picks the default configuration where there are several algorithms, the last one at most.
    """
    target = host_target()
    found: dict[str, OperatorKernel] = {}
    for task in distinct_operators(graph):
        space = cpu_space(task.operator, target)
        defaults = space.defaults()
        configuration = defaults[min(algorithm, len(defaults) - 1)]
        if rng is not None:
            configuration = space.configuration(space.sample(rng, 1)[0])
        nest = Programs(space).nest(configuration)
        symbol = f"k_{task.operator.key}"
        kernel = kernel_of(symbol, nest)
        provenance = KernelProvenance(symbol=symbol, operator_key=task.operator.key, tuned=False)
        planned = PlannedKernel(compile_object(symbol, nest, target), kernel.workspace_bytes, provenance)
        packings = tuple(argument.packing for argument in kernel.arguments[:-1])
        found[task.operator.key] = OperatorKernel(planned, packings)
    return found


def run_library(plan: ModelPlan, inputs: dict[str, Array], folder: Path) -> dict[str, Array]:
    """The plan's library called as one kernel, its memory poisoned with NaN before."""
    path = folder / "model.so"
    path.write_bytes(library.build(plan, host_target()).shared_object)
    loaded = ctypes.CDLL(str(path))

    def buffer(size_bytes: int) -> Array:
        memory = np.full(size_bytes + ALIGNMENT, 0xFF, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
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
