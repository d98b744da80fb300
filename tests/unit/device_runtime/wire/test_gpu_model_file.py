"""The model format of GPU targets: what is written is read again, and anything else is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest

from device_runtime.wire.frames import ProtocolError
from device_runtime.wire.gpu_model_file import GPU_ALIGNMENT, GpuModel
from device_runtime.wire.gpu_module import GpuKernel, GpuModule, Launch

KERNEL = GpuKernel(
    "code", 96, (Launch("f", (2, 1, 1), (8, 4, 1), (0, 1)), Launch("g", (1, 1, 1), (7, 1, 1), ()))
)
MODEL = GpuModel(
    module=GpuModule("opencl", {"k": KERNEL, "l": dataclasses.replace(KERNEL, workspace_bytes=32)}),
    parameters=bytes(GPU_ALIGNMENT + 4),
    arena_bytes=3 * GPU_ALIGNMENT,
    inputs=(8,),
    outputs=(4,),
    steps=(
        ("k", (("input", 0, 8), ("parameter", GPU_ALIGNMENT, 4), ("arena", 0, 40))),
        ("l", (("arena", 0, 40), ("output", 0, 4))),
    ),
)


def test_what_is_written_is_read_again() -> None:
    data = MODEL.to_bytes()
    assert GpuModel.from_bytes(data) == MODEL
    assert GpuModel.from_bytes(data).to_bytes() == data


def test_what_it_needs_of_a_device() -> None:
    assert (MODEL.scratch_bytes, MODEL.threads_per_block) == (96, 32)


def plain(**changes: Any) -> bytes:
    content = msgpack.unpackb(MODEL.to_bytes(), raw=False)
    packed: bytes = msgpack.packb({**content, **changes}, use_bin_type=True)
    return packed


def steps(*buffers: Any, symbol: str = "k") -> bytes:
    return plain(steps=[[symbol, list(buffers)]])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xc1", "not msgpack"),
        (plain(version=2), "version 2, this runtime loads 1"),
        (plain(device="Mali"), "'entries'|entries: expected arena_bytes"),
        (plain(inputs=[-1]), "'inputs': expected 0 to"),
        (plain(parameters="text"), "'parameters': expected bytes"),
        (plain(steps=[["k"]]), "step: expected a symbol and buffers"),
        (steps(symbol="m"), "step 0: expected a kernel of the module, found 'm'"),
        (steps(["arena", 0]), "expected one of input, output, parameter, arena, a place and a size"),
        (steps(["register", 0, 4]), "expected one of input, output, parameter, arena, a place and a size"),
        (steps(["input", 1, 8]), "expected one of the inputs"),
        (steps(["output", 0, 8]), "expected one of the outputs"),
        (steps(["arena", 64, 8]), "expected arena from a multiple of 512 to at most 1536"),
        (steps(["arena", 1024, 513]), "expected arena from a multiple of 512 to at most 1536"),
        (steps(["arena", 0, 0]), "expected arena from a multiple of 512"),
        (steps(["parameter", 512, 5]), "expected parameter from a multiple of 512 to at most 516"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        GpuModel.from_bytes(data)
