"""The model format of GPU targets: what is written is read again, and anything else is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import pytest

from device_runtime.wire.frames import ProtocolError
from device_runtime.wire.gpu_model_file import (
    GPU_ALIGNMENT,
    MAX_DEPTH,
    GpuBuffer,
    GpuCall,
    GpuChoice,
    GpuCopy,
    GpuLoop,
    GpuModel,
)
from device_runtime.wire.gpu_module import GpuKernel, GpuModule, Launch

KERNEL = GpuKernel(
    "code", 96, (Launch("f", (2, 1, 1), (8, 4, 1), (0, 1)), Launch("g", (1, 1, 1), (7, 1, 1), ()))
)
MODEL = GpuModel(
    module=GpuModule("opencl", {"k": KERNEL, "l": dataclasses.replace(KERNEL, workspace_bytes=32)}),
    parameters=bytes(GPU_ALIGNMENT + 4),
    arena_bytes=3 * GPU_ALIGNMENT,
    inputs=(8, 3 * GPU_ALIGNMENT),
    outputs=(4, 12),
    steps=(
        GpuCall(
            "k",
            (GpuBuffer("input", 0, 8), GpuBuffer("parameter", GPU_ALIGNMENT, 4), GpuBuffer("arena", 0, 40)),
        ),
        GpuLoop(
            3,
            GpuBuffer("arena", 0, 1),
            (
                GpuCall(
                    "l",
                    (
                        GpuBuffer("input", 1, GPU_ALIGNMENT, 2 * GPU_ALIGNMENT, (-GPU_ALIGNMENT,)),
                        GpuBuffer("arena", GPU_ALIGNMENT, 4),
                    ),
                ),
                GpuCopy(GpuBuffer("arena", GPU_ALIGNMENT, 4), GpuBuffer("output", 1, 4, 0, (4,))),
            ),
        ),
        GpuChoice(
            GpuBuffer("input", 0, 1), (GpuCopy(GpuBuffer("arena", 3, 4), GpuBuffer("output", 0, 4)),), ()
        ),
    ),
)


def test_what_is_written_is_read_again() -> None:
    data = MODEL.to_bytes()
    assert GpuModel.from_bytes(data) == MODEL
    assert GpuModel.from_bytes(data).to_bytes() == data


def test_loops_and_choices_may_be_nested() -> None:
    model = GpuModel.from_bytes(nested(MAX_DEPTH))
    assert model.to_bytes() == nested(MAX_DEPTH)


def test_what_it_needs_of_a_device() -> None:
    assert (MODEL.scratch_bytes, MODEL.threads_per_block) == (96, 32)


def plain(**changes: Any) -> bytes:
    content = msgpack.unpackb(MODEL.to_bytes(), raw=False)
    packed: bytes = msgpack.packb({**content, **changes}, use_bin_type=True)
    return packed


def place(
    kind: str = "arena", at: int = 0, size_bytes: int = 4, offset: int = 0, strides: Sequence[int] = ()
) -> dict[str, Any]:
    return {"kind": kind, "at": at, "size_bytes": size_bytes, "offset": offset, "strides": list(strides)}


def call(*buffers: Any, symbol: str = "k") -> bytes:
    """A model that calls a kernel with one input and these buffers."""
    return plain(steps=[{"symbol": symbol, "buffers": list(buffers)}])


def copy(source: Any, target: Any) -> dict[str, Any]:
    return {"source": source, "target": target}


def loop(*steps: Any, count: int = 3, condition: Any = None) -> dict[str, Any]:
    return {"count": count, "condition": condition, "steps": list(steps)}


def nested(depth: int) -> bytes:
    step = copy(place(), place("output"))
    for _ in range(depth):
        step = loop(step)
    return plain(steps=[step])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xc1", "not msgpack"),
        (plain(version=1), "version 1, this runtime loads 2"),
        (plain(device="Mali"), "GpuModel: unknown entries device"),
        (plain(inputs=[-1]), "'inputs': expected 0 to"),
        (plain(parameters="text"), "'parameters': expected bytes"),
        (plain(module={**msgpack.unpackb(MODEL.to_bytes())["module"], "language": "cuda"}), "bytes for cuda"),
        (plain(steps=[["k"]]), "'steps': expected a map of symbol, buffers, or source, target, or count"),
        (plain(steps=[{"symbol": "k"}]), "'steps': expected a map of"),
        (call(place(), symbol="m"), "step 0: expected a kernel of the module, found 'm'"),
        (call(), "'buffers': expected a list of 1 to"),
        (call({"kind": "arena"}), "'at': expected int"),
        (call(place("register")), "expected one of input, output, parameter, arena"),
        (call(place("input", 2), place()), "expected one of 2 inputs"),
        (call(place("output", 2)), "expected one of 2 outputs"),
        (call(place("output", 0, 8)), "expected bytes of output 0 within 0 to 4"),
        (call(place("input")), "expected what is written to be in one of output, arena"),
        (call(place("arena", 64)), "expected places at multiples of 512 bytes"),
        (call(place("arena", 0, 4, 64)), "expected places at multiples of 512 bytes"),
        (call(place("arena", 1024, 513)), "expected bytes of arena 1024 within 0 to 1536"),
        (call(place("arena", 0, 0)), "'size_bytes': expected 1 to"),
        (call(place("parameter", 512, 5), place()), "expected bytes of parameter 512 within 0 to 516"),
        (call(place("arena", 0, 4, 0, [512])), "expected strides of 0 loops"),
        (plain(steps=[copy(place(), place("output", 1, 5))]), "expected a target of 4 bytes"),
        (plain(steps=[copy(place(), place("parameter"))]), "expected what is written to be in one of"),
        (plain(steps=[loop(count=0)]), "'count': expected 1 to"),
        (plain(steps=[loop(count=1 << 31)]), "'count': expected 1 to"),
        (plain(steps=[loop(condition=place())]), "step 0: expected a condition of 1 byte"),
        (plain(steps=[loop(condition=place("arena", 1, 1))]), "expected places at multiples of 512"),
        (
            plain(steps=[loop(copy(place(), place("output", 1, 4, 4, [4])))]),
            "step 0.0: expected bytes of output 1 within 0 to 12",
        ),
        (
            plain(steps=[loop(copy(place(), place("output", 1, 4, 4, [-4])))]),
            "step 0.0: expected bytes of output 1 within 0 to 12",
        ),
        (
            plain(
                steps=[
                    {
                        "condition": place(size_bytes=1),
                        "then": [],
                        "otherwise": [copy(place(), place("output", 9))],
                    }
                ]
            ),
            "step 0.otherwise.0: expected one of 2 outputs",
        ),
        (nested(MAX_DEPTH + 1), f"at most {MAX_DEPTH} loops and choices in each other"),
        (nested(300), f"at most {MAX_DEPTH} loops and choices in each other"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        GpuModel.from_bytes(data)
