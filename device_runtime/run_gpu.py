"""Start a GPU variant: kernels built or loaded from kept binaries, parameters and memory on the device."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Iterator, List, Sequence, Tuple

from device_runtime.arrays import difference
from device_runtime.buffers import Region
from device_runtime.check import Difference, unwritten_byte
from device_runtime.gpu import SMALLEST_BUFFER_BYTES, Device
from device_runtime.gpu_model import GpuModel
from device_runtime.gpu_open import open_gpu
from device_runtime.gpu_steps import ModelCall
from device_runtime.installed_model import InstalledModel, output_sizes, read_part, size_bytes
from device_runtime.isolation import Fault
from device_runtime.protocol import ProtocolError
from device_runtime.started import Started


@contextlib.contextmanager
def start_on_gpu(model: InstalledModel) -> Iterator[Started]:
    """The model on its device; raises Fault. What it holds there goes with the process."""
    region = read_part(model, model.variant["model"])
    try:
        loaded = GpuModel.from_bytes(bytes(memoryview(region.memory)[: region.size_bytes]))
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
        self._device: Device = open_gpu(model.kind, variant["device"], model.folders, variant["threads"])
        self._inputs = [self._allocated(size) for size in loaded.inputs]
        self._outputs = [self._allocated(size) for size in loaded.outputs]
        self._call = ModelCall(self._device, loaded, [*self._inputs, *self._outputs])
        self._kept = False

    def run(self, inputs: Sequence[Region]) -> Tuple[List[Region], float]:
        outputs = [Region(size) for size in output_sizes(self._model)]
        for spec, handle, region in zip(self._model.manifest["outputs"], self._outputs, outputs):
            self._device.fill(handle, region.size_bytes, unwritten_byte(spec["dtype"]))
        started_s = time.perf_counter()
        for handle, region in zip(self._inputs, inputs):
            self._device.write(handle, region)
        self._call.run()
        for handle, region in zip(self._outputs, outputs):
            self._device.download(handle, region)
        seconds = time.perf_counter() - started_s
        if not self._kept:
            self._device.built()
            self._kept = True
        return outputs, seconds

    def difference(self, dtype: str, got: Region, want: Region, elements: int) -> Difference:
        return difference(dtype, got, want, elements)

    def _allocated(self, count_bytes: int) -> Any:
        return self._device.allocate(max(SMALLEST_BUFFER_BYTES, count_bytes))
