"""Start a GPU variant: kernels built or loaded from kept binaries, parameters and memory on the device."""

from __future__ import annotations

import contextlib
import time
from typing import Iterator, List, Sequence, Tuple

from device_runtime.drivers.device import Device
from device_runtime.drivers.gpu_buffers import GuardedBuffer
from device_runtime.drivers.gpu_open import GPU_DRIVERS
from device_runtime.drivers.loaded_model import ModelCall
from device_runtime.installed.installed_model import (
    InstalledModel,
    Started,
    output_sizes,
    read_part,
    size_bytes,
)
from device_runtime.measure.check import Difference
from device_runtime.measure.numpy_check import difference
from device_runtime.protocol import ProtocolError, unwritten_byte
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault
from device_runtime.wire.gpu_model_file import GpuModel


@contextlib.contextmanager
def start_on_gpu(model: InstalledModel) -> Iterator[Started]:
    """The model on its device; raises Fault. What it holds there goes with the process."""
    region = read_part(model, model.variant["model"])
    try:
        loaded = GpuModel.from_bytes(bytes(region.memory))
    except ProtocolError as error:
        raise Fault("link", f"the model cannot be loaded: {error.text}") from None
    sizes = [size_bytes(spec) for role in ("inputs", "outputs") for spec in model.manifest[role]]
    if list(loaded.inputs + loaded.outputs) != sizes or loaded.module.language != model.kind:
        raise Fault(
            "link", f"the model is not what its manifest says: {model.kind} with buffers of {sizes} bytes"
        )
    yield _OnGpu(model, loaded)


class _OnGpu(Started):
    def __init__(self, model: InstalledModel, loaded: GpuModel) -> None:
        variant = model.variant
        self._model = model
        self._device: Device = GPU_DRIVERS[model.kind].open(
            variant["device"], model.folders, variant["threads"]
        )
        self._inputs = [GuardedBuffer(self._device, size) for size in loaded.inputs]
        self._outputs = [GuardedBuffer(self._device, size) for size in loaded.outputs]
        self._call = ModelCall(self._device, loaded, (*self._inputs, *self._outputs))
        self._kept = False

    def run(self, inputs: Sequence[Region]) -> Tuple[List[Region], float]:
        outputs = [Region(size) for size in output_sizes(self._model)]
        for spec, buffer in zip(self._model.manifest["outputs"], self._outputs):
            buffer.fill(unwritten_byte(spec["dtype"]))
        started_s = time.perf_counter()
        for buffer, region in zip(self._inputs, inputs):
            if region.size_bytes:
                self._device.write(buffer.handle, region)
        self._call.run()
        for buffer, region in zip(self._outputs, outputs):
            if region.size_bytes:
                self._device.download(buffer.handle, region)
        seconds = time.perf_counter() - started_s
        for buffer in (*self._outputs, *self._call.own):
            if buffer.strayed():
                raise Fault("wrong_answer", f"the model wrote {buffer.strayed()} of a buffer")
        if not self._kept:
            self._device.built()
            self._kept = True
        return outputs, seconds

    def difference(self, dtype: str, got: Region, want: Region, elements: int) -> Difference:
        return difference(dtype, got, want, elements)
