"""A GPU model in the memory of a device: all buffers are made once, all kernels built once, then it runs.

Unlike a kernel's, its time is the host's: from putting the first launch into the queue until the last one has
ended, which is what an application waits for.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence

from device_runtime.drivers.device import SMALLEST_BUFFER_BYTES, Call, Device, launch_arguments
from device_runtime.drivers.gpu_buffers import GuardedBuffer
from device_runtime.protocol import GpuBuffer, GpuModel
from device_runtime.sandbox.guarded_memory import Region


class ModelCall(Call):
    """The model's steps with their buffers; `handles` are those of the graph's inputs, then its outputs.

    `own` is what the steps write beside the outputs.
    """

    def __init__(self, device: Device, model: GpuModel, handles: Sequence[Any]) -> None:
        self.device = device
        arena = GuardedBuffer(device, model.arena_bytes)
        parameters = device.upload(_region(model.parameters or bytes(SMALLEST_BUFFER_BYTES)))
        workspace = GuardedBuffer(device, model.scratch_bytes)
        self.own = (arena, workspace)
        self._parameters = parameters  # CUDA's parts are addresses only
        parts: Dict[GpuBuffer, Any] = {}

        def place(buffer: GpuBuffer) -> Any:
            kind, at, size_bytes = buffer
            if kind in ("input", "output"):
                return handles[at if kind == "input" else len(model.inputs) + at]
            if buffer not in parts:
                held = (
                    arena.part(at, size_bytes) if kind == "arena" else device.part(parameters, at, size_bytes)
                )
                parts[buffer] = held
            return parts[buffer]

        self._calls: List[Call] = []
        for symbol, buffers in model.steps:
            kernel = model.module.kernels[symbol]
            arguments = launch_arguments(kernel, [place(buffer) for buffer in buffers], workspace.handle)
            self._calls.append(device.prepare(kernel, arguments))

    def start(self) -> None:
        for call in self._calls:
            call.start()

    def seconds(self, number: int, flush_bytes: int) -> float:
        del flush_bytes  # a model goes through more memory than a cache holds
        started_s = time.perf_counter()
        for _ in range(number):
            self.run()
        return time.perf_counter() - started_s


def _region(data: bytes) -> Region:
    """The bytes as memory that a device can copy from."""
    region = Region(len(data))
    region.memory[:] = data
    return region
