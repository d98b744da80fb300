"""A kernel or a whole model of a GPU module in a measurement's child. Start at run_gpu_module()."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from device_runtime.drivers.device import Call, Device, launch_arguments
from device_runtime.drivers.gpu_buffers import GuardedBuffer
from device_runtime.drivers.loaded_model import ModelCall
from device_runtime.measure.check import Difference
from device_runtime.measure.numpy_check import difference
from device_runtime.measure.repeats import time_repeats
from device_runtime.measure.trial import DataSet, Trial, carry_out
from device_runtime.protocol import (
    BufferRequest,
    GpuKernel,
    GpuModel,
    GpuModule,
    MeasureRequest,
    ProtocolError,
    Timing,
    unwritten_byte,
)
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

MODEL_SYMBOL = "tfb_model"


def run_gpu_module(
    device: Device, path: str, request: MeasureRequest, sets: Sequence[DataSet]
) -> Dict[str, Any]:
    """What trial.carry_out answers.

    `path` is that of a GpuModule, or of a GpuModel for MODEL_SYMBOL, whose buffers are the graph's inputs,
    then its outputs. Raises Fault.
    """
    return carry_out(_GpuTrial(device, program_of(path, request), request), request, sets)


class _GpuTrial(Trial):
    def __init__(
        self,
        device: Device,
        program: Union[GpuKernel, GpuModel],
        request: MeasureRequest,
    ) -> None:
        self._device = device
        self._request = request
        self._held: List[Optional[Region]] = [None] * len(request.buffers)  # what each input's buffer holds
        self._buffers = [GuardedBuffer(device, buffer.size_bytes) for buffer in request.buffers]
        self._call: Call
        self._own: Sequence[GuardedBuffer]
        if isinstance(program, GpuModel):
            self._call = model = ModelCall(device, program, self._buffers)
            self._own = model.own
        else:
            handles = [buffer.handle for buffer in self._buffers]
            workspace = GuardedBuffer(device, program.workspace_bytes)
            self._call = device.prepare(program, launch_arguments(program, handles, workspace.handle))
            self._own = (workspace,)

    def put(self, data: DataSet, at_start: bool) -> None:
        """There are canaries on both sides: `at_start` is of no use here."""
        for place, (buffer, own, new) in enumerate(zip(self._request.buffers, self._buffers, data)):
            if buffer.role == "output":
                for written in (own, *self._own):
                    written.fill(unwritten_byte(buffer.dtype))
            elif new is not None and self._held[place] is not new and buffer.elements:
                self._device.write(own.handle, new)
                self._held[place] = new

    def call(self, order: int) -> None:
        """A device runs its blocks in orders of its own."""
        self._call.run()
        self._device.built()

    def time(self, timing: Timing) -> Tuple[List[float], int]:
        flush_bytes = timing.flush_bytes
        return time_repeats(lambda calls: self._call.seconds(calls, flush_bytes), self._call.run, timing)

    def differences(self, data: DataSet) -> List[Tuple[BufferRequest, Difference]]:
        return [
            (buffer, difference(buffer.dtype, own.content(), wanted, buffer.elements, buffer.bounds))
            for buffer, own, wanted in zip(self._request.buffers, self._buffers, data)
            if buffer.role == "output" and wanted
        ]

    def strayed(self) -> str:
        found = []
        for place, own in enumerate(self._buffers):
            held = self._held[place]
            if held and bytes(own.content().memory) != bytes(held.memory):
                found.append(f"to buffer {place}, an input")
            if own.strayed():
                found.append(f"{own.strayed()} of buffer {place}")
        found += [f"{own.strayed()} of the workspace" for own in self._own if own.strayed()]
        return ", ".join(found)


def program_of(path: str, request: MeasureRequest) -> Union[GpuKernel, GpuModel]:
    """What the request names. Raises Fault("link") for a module that does not fit the request."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        model = GpuModel.from_bytes(data) if request.symbol == MODEL_SYMBOL else None
        module = model.module if model else GpuModule.from_bytes(data)
    except ProtocolError as error:
        raise Fault("link", f"the module cannot be loaded: {error.text}") from None
    if module.language != request.driver:
        raise Fault("link", f"the module is for {module.language}, the request for {request.driver}")
    if model is not None:
        sizes = tuple(buffer.size_bytes for buffer in request.buffers)
        if sizes != model.inputs + model.outputs:
            raise Fault("link", f"the model has buffers of {model.inputs + model.outputs} bytes, not {sizes}")
        return model
    if request.symbol not in module.kernels:
        known = ", ".join(sorted(module.kernels))
        raise Fault("link", f"the module has no kernel {request.symbol}; it has {known:.200}")
    return module.kernels[request.symbol]
