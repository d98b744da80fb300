"""A GPU model in the memory of a device: all buffers are made once, all kernels built once, then it runs.

Its loops and choices run here, on the host of the device: they put launches and copies into the queue. A
kernel whose buffers move with the runs of a loop gets them before each launch; a condition is read back, for
which everything before it has to end. Unlike a kernel's, a model's time is the host's: from putting the first
launch into the queue until the last one has ended, which is what an application waits for.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

from device_runtime.drivers.device import SMALLEST_BUFFER_BYTES, Call, Device, launch_arguments
from device_runtime.drivers.gpu_buffers import GuardedBuffer
from device_runtime.protocol import GpuBuffer, GpuCall, GpuChoice, GpuCopy, GpuLoop, GpuModel, GpuStep
from device_runtime.sandbox.guarded_memory import Region

RUNS_IN_QUEUE = 256  # of a loop, before the queue is waited for: a driver holds memory for each launch in it

Runs = Tuple[int, ...]  # the numbers of the runs of the loops around a step, the outermost first
Started = Callable[[Runs], None]  # what puts a step into the queue


class ModelCall(Call):
    """The model's steps with their buffers; `buffers` are the graph's inputs, then its outputs.

    `own` is what the steps write beside the outputs.
    """

    def __init__(self, device: Device, model: GpuModel, buffers: Sequence[GuardedBuffer]) -> None:
        self.device = device
        self._model = model
        self._buffers = buffers
        self._arena = GuardedBuffer(device, model.arena_bytes)
        self._parameters = device.upload(_region(model.parameters or bytes(SMALLEST_BUFFER_BYTES)))
        self._workspace = GuardedBuffer(device, model.scratch_bytes)
        self.own = (self._arena, self._workspace)
        self._parts: Dict[GpuBuffer, Any] = {}
        self._started = self._all(model.steps)

    def start(self) -> None:
        for started in self._started:
            started(())

    def seconds(self, number: int, flush_bytes: int) -> float:
        del flush_bytes  # a model goes through more memory than a cache holds
        started_s = time.perf_counter()
        for _ in range(number):
            self.run()
        return time.perf_counter() - started_s

    def _all(self, steps: Sequence[GpuStep]) -> List[Started]:
        return [self._step(step) for step in steps]

    def _step(self, step: GpuStep) -> Started:
        if isinstance(step, GpuCall):
            return self._kernel(step)
        if isinstance(step, GpuCopy):
            return self._copy(step)
        return self._loop(step) if isinstance(step, GpuLoop) else self._choice(step)

    def _kernel(self, step: GpuCall) -> Started:
        kernel = self._model.module.kernels[step.symbol]

        def arguments(runs: Runs) -> List[List[Any]]:
            handles = [self._part(buffer, runs) for buffer in step.buffers]
            return launch_arguments(kernel, handles, self._workspace.handle)

        call = self.device.prepare(kernel, arguments(()))
        if not any(buffer.strides for buffer in step.buffers):
            return lambda runs: call.start()

        def started(runs: Runs) -> None:
            call.place(arguments(runs))
            call.start()

        return started

    def _copy(self, step: GpuCopy) -> Started:
        source, target, size_bytes = (
            self._whole(step.source),
            self._whole(step.target),
            step.source.size_bytes,
        )
        return lambda runs: self.device.copy(
            source, step.source.begin(runs), target, step.target.begin(runs), size_bytes
        )

    def _loop(self, step: GpuLoop) -> Started:
        inner = self._all(step.steps)

        def started(runs: Runs) -> None:
            for run in range(step.count):
                inside = (*runs, run)
                if step.condition is not None and not self._holds(step.condition, inside):
                    break
                for begun in inner:
                    begun(inside)
                if run % RUNS_IN_QUEUE == RUNS_IN_QUEUE - 1:
                    self.device.wait()

        return started

    def _choice(self, step: GpuChoice) -> Started:
        then, otherwise = self._all(step.then), self._all(step.otherwise)

        def started(runs: Runs) -> None:
            for begun in then if self._holds(step.condition, runs) else otherwise:
                begun(runs)

        return started

    def _holds(self, condition: GpuBuffer, runs: Runs) -> bool:
        byte = Region(condition.size_bytes)
        self.device.download(self._part(condition, runs), byte)
        return byte.memory[0] != 0

    def _whole(self, buffer: GpuBuffer) -> Any:
        """The handle of all the memory that a buffer lies in."""
        if buffer.kind == "parameter":
            return self._parameters
        return self._memory(buffer).handle

    def _memory(self, buffer: GpuBuffer) -> GuardedBuffer:
        """The arena, or an input or output of the graph."""
        if buffer.kind == "arena":
            return self._arena
        return self._buffers[buffer.at if buffer.kind == "input" else len(self._model.inputs) + buffer.at]

    def _part(self, buffer: GpuBuffer, runs: Runs) -> Any:
        """The handle of a buffer in such runs of the loops around; that of one which stays is made once."""
        if buffer in self._parts:
            return self._parts[buffer]
        if buffer.kind == "parameter":
            found = self.device.part(self._parameters, buffer.begin(runs), buffer.size_bytes)
        else:
            found = self._memory(buffer).part(buffer.begin(runs), buffer.size_bytes)
        if not buffer.strides:
            self._parts[buffer] = found
        return found


def _region(data: bytes) -> Region:
    """The bytes as memory that a device can copy from."""
    region = Region(len(data))
    region.memory[:] = data
    return region
