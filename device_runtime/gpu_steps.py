"""A GPU model in the memory of a device: all buffers are made once, all kernels built once, then it runs.

Unlike a kernel's, its time is the host's: from putting the first launch into the queue until the last one has
ended, which is what an application waits for.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Sequence

from device_runtime.buffers import Region
from device_runtime.gpu import SMALLEST_BUFFER_BYTES, Call, Device, launch_arguments
from device_runtime.protocol import GpuModel


class ModelCall(Call):
    """The model's steps with their buffers; `handles` are those of the graph's inputs, then its outputs."""

    def __init__(self, device: Device, model: GpuModel, handles: Sequence[Any]) -> None:
        self._device = device
        arena = device.allocate(max(SMALLEST_BUFFER_BYTES, model.arena_bytes))
        parameters = device.upload(region_of(model.parameters or bytes(SMALLEST_BUFFER_BYTES)))
        scratch_bytes = max(kernel.workspace_bytes for kernel in model.module.kernels.values())
        workspace = device.allocate(max(SMALLEST_BUFFER_BYTES, scratch_bytes))
        self._whole = (arena, parameters)  # CUDA's parts are addresses only
        places: Dict[Any, Any] = {}
        for number, handle in enumerate(handles):
            inputs = len(model.inputs)
            place = ("input", number) if number < inputs else ("output", number - inputs)
            places[place] = handle
        for _, buffers in model.steps:
            for kind, at in buffers:
                if (kind, at) not in places:
                    whole, size = (
                        (arena, model.arena_bytes) if kind == "arena" else (parameters, len(model.parameters))
                    )
                    places[kind, at] = device.part(whole, at, size - at)
        self._calls: List[Call] = []
        for symbol, buffers in model.steps:
            kernel = model.module.kernels[symbol]
            arguments = launch_arguments(kernel, [places[buffer] for buffer in buffers], workspace)
            self._calls.append(device.prepare(kernel, arguments))

    def start(self) -> None:
        for call in self._calls:
            call.start()

    def run(self) -> None:
        self.start()
        self._device.wait()

    def seconds(self, number: int, flush_bytes: int) -> float:
        del flush_bytes  # a model goes through more memory than a cache holds
        started_s = time.perf_counter()
        for _ in range(number):
            self.run()
        return time.perf_counter() - started_s


def region_of(data: bytes) -> Region:
    """The bytes as memory that a device can copy from."""
    region = Region(len(data))
    region.memory[: len(data)] = data
    return region
