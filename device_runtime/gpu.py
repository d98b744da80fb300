"""What a measurement's child does with a GPU kernel: load, call once, check, time, check again.

The same for OpenCL and CUDA: opencl.py and cuda.py each give a Device and the Calls that it prepares. What
is wrong with a module, a launch or a device is a Fault. Start at run_gpu_kernel().
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from device_runtime.arrays import difference
from device_runtime.buffers import Region
from device_runtime.check import Difference, unwritten_byte
from device_runtime.isolation import Fault
from device_runtime.protocol import (
    WORKSPACE,
    BufferRequest,
    GpuKernel,
    GpuModule,
    MeasureRequest,
    ProtocolError,
)
from device_runtime.repeats import time_repeats

SMALLEST_BUFFER_BYTES = 4  # drivers refuse empty ones


class Call(ABC):
    """One kernel with its arguments, ready to run."""

    @abstractmethod
    def run(self) -> None:
        """Run all its launches once, and wait for them. Raises Fault."""

    @abstractmethod
    def seconds(self, number: int, flush_bytes: int) -> float:
        """Seconds that `number` calls took on the device, by its own clock; between the calls, `flush_bytes`
        of other memory are written. Raises Fault."""


class Device(ABC):
    """A context on one device. Handles are its driver's; they live as long as the process."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> Any:
        """A buffer on the device, aligned to 256 bytes at least. Raises Fault("out_of_memory")."""

    @abstractmethod
    def upload(self, region: Region) -> Any:
        """A buffer with the region's content. Raises Fault("out_of_memory")."""

    @abstractmethod
    def fill(self, handle: Any, size_bytes: int, byte: int) -> None:
        """Set every byte of a buffer."""

    @abstractmethod
    def download(self, handle: Any, region: Region) -> None:
        """Copy a buffer into the region, waiting for what runs. Raises Fault."""

    @abstractmethod
    def prepare(self, kernel: GpuKernel, arguments: Sequence[Sequence[Any]]) -> Call:
        """Build or load the kernel's code; `arguments` are the handles of each launch. Raises Fault."""

    @abstractmethod
    def built(self) -> None:
        """Called once the kernel has given the right answer: a driver may keep its binary now."""


def run_gpu_kernel(
    device: Device, path: str, request: MeasureRequest, inputs: Mapping[str, Region]
) -> Dict[str, Any]:
    """Entries of MeasureResult: seconds, number, max_abs_error, max_abs_reference, and failure when wrong.

    `path` is that of a GpuModule; `inputs` holds the objects that the request names. Raises Fault.
    """
    kernel = kernel_of(path, request)
    handles = [
        device.upload(inputs[buffer.sha])
        if buffer.role == "input"
        else device.allocate(max(SMALLEST_BUFFER_BYTES, buffer.size_bytes))
        for buffer in request.buffers
    ]
    workspace = device.allocate(max(SMALLEST_BUFFER_BYTES, kernel.workspace_bytes))
    for buffer, handle in zip(request.buffers, handles):
        if buffer.role == "output":
            device.fill(handle, buffer.size_bytes, unwritten_byte(buffer.dtype))

    call = device.prepare(kernel, launch_arguments(kernel, handles, workspace))
    call.run()
    answer = _check(device, request, handles, inputs)
    if "failure" in answer:
        return answer
    device.built()
    timing = request.timing
    if timing is None:
        return answer
    flush_bytes = timing.flush_bytes
    seconds, number = time_repeats(lambda calls: call.seconds(calls, flush_bytes), call.run, timing)
    answer = _check(device, request, handles, inputs)  # right at first and wrong later is wrong
    return answer if "failure" in answer else {**answer, "seconds": seconds, "number": number}


def kernel_of(path: str, request: MeasureRequest) -> GpuKernel:
    """The kernel that the request names. Raises Fault("link") for a module that does not fit the request."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        module = GpuModule.from_bytes(data)
    except ProtocolError as error:
        raise Fault("link", f"the module cannot be loaded: {error.text}") from None
    if module.language != request.driver:
        raise Fault("link", f"the module is for {module.language}, the request for {request.driver}")
    if request.symbol not in module.kernels:
        known = ", ".join(sorted(module.kernels))
        raise Fault("link", f"the module has no kernel {request.symbol}; it has {known:.200}")
    return module.kernels[request.symbol]


def launch_arguments(kernel: GpuKernel, handles: Sequence[Any], workspace: Any) -> List[List[Any]]:
    """The handles that each launch of the kernel takes. Raises Fault("link") where one is not there."""
    found = []
    for launch in kernel.launches:
        wrong = [index for index in launch.buffers if index >= len(handles)]
        if wrong:
            text = f"launch {launch.name} takes argument {wrong[0]}, the kernel has {len(handles)}"
            raise Fault("link", text)
        found.append([workspace if index == WORKSPACE else handles[index] for index in launch.buffers])
    return found


def _check(
    device: Device, request: MeasureRequest, handles: Sequence[Any], inputs: Mapping[str, Region]
) -> Dict[str, Any]:
    found: List[Tuple[BufferRequest, Difference]] = []
    for buffer, handle in zip(request.buffers, handles):
        if buffer.role == "output" and buffer.sha:
            got = Region(buffer.size_bytes)
            device.download(handle, got)
            found.append((buffer, difference(buffer.dtype, got, inputs[buffer.sha], buffer.elements)))
    answer: Dict[str, Any] = {
        "seconds": [],
        "number": 0,
        "max_abs_error": max((one.max_abs_error for _, one in found), default=0.0),
        "max_abs_reference": max((one.max_abs_reference for _, one in found), default=0.0),
    }
    for buffer, one in found:
        if not one.within(request.rtol):
            text = one.text(buffer.elements, request.rtol)
            answer["failure"] = {"kind": "wrong_answer", "text": text, "signal": None}
    return answer
