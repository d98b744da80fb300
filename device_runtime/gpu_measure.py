"""What a measurement's child does with a GPU module: load, call once, check, time, check again.

Kernels and whole models alike; start at run_gpu_module().
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple, Union

from device_runtime.arrays import difference
from device_runtime.buffers import Region
from device_runtime.check import Difference, checked, unwritten_byte
from device_runtime.gpu import SMALLEST_BUFFER_BYTES, Call, Device, launch_arguments
from device_runtime.gpu_steps import ModelCall
from device_runtime.isolation import Fault
from device_runtime.protocol import (
    BufferRequest,
    GpuKernel,
    GpuModel,
    GpuModule,
    MeasureRequest,
    ProtocolError,
)
from device_runtime.repeats import time_repeats

MODEL_SYMBOL = "tfb_model"


def run_gpu_module(
    device: Device, path: str, request: MeasureRequest, inputs: Mapping[str, Region]
) -> Dict[str, Any]:
    """Entries of MeasureResult: seconds, number, max_abs_error, max_abs_reference, and failure when wrong.

    `path` is that of a GpuModule, or of a GpuModel for MODEL_SYMBOL, whose buffers are the graph's inputs,
    then its outputs; `inputs` holds the objects that the request names. Raises Fault.
    """
    program = program_of(path, request)
    handles = [
        device.upload(inputs[buffer.sha])
        if buffer.role == "input"
        else device.allocate(max(SMALLEST_BUFFER_BYTES, buffer.size_bytes))
        for buffer in request.buffers
    ]
    for buffer, handle in zip(request.buffers, handles):
        if buffer.role == "output":
            device.fill(handle, buffer.size_bytes, unwritten_byte(buffer.dtype))

    call = prepared(device, program, handles)
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


def prepared(device: Device, program: Union[GpuKernel, GpuModel], handles: Sequence[Any]) -> Call:
    """The kernel or the model, built and with its buffers. Raises Fault."""
    if isinstance(program, GpuModel):
        return ModelCall(device, program, handles)
    workspace = device.allocate(max(SMALLEST_BUFFER_BYTES, program.workspace_bytes))
    return device.prepare(program, launch_arguments(program, handles, workspace))


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


def _check(
    device: Device, request: MeasureRequest, handles: Sequence[Any], inputs: Mapping[str, Region]
) -> Dict[str, Any]:
    found: List[Tuple[BufferRequest, Difference]] = []
    for buffer, handle in zip(request.buffers, handles):
        if buffer.role == "output" and buffer.sha:
            got = Region(buffer.size_bytes)
            device.download(handle, got)
            found.append((buffer, difference(buffer.dtype, got, inputs[buffer.sha], buffer.elements)))
    return checked(found, request.rtol)
