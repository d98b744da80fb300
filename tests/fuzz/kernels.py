"""Runs the kernels of an artifact, in this process or under emulation."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.compile import Artifact, Kernel, compile
from cross.loopnest import LoopNest
from tests.interpreter.interpreter import undefined

Array = NDArray[Any]

ALIGNMENT_BYTES = 64
GUARD_BYTES = 64  # before and after every buffer, checked for writes out of bounds
GUARD_VALUE = 0xA5
RUNNER = Path(__file__).with_name("board_runner.py")
EMULATION_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Job:
    """One kernel with the values of its inputs in the operator's order and layout."""

    nest: LoopNest
    inputs: Sequence[Array]


def compile_jobs(jobs: Sequence[Job], target: Target) -> Artifact:
    """All kernels in one artifact, in order."""
    return compile([(f"kernel{position}", job.nest) for position, job in enumerate(jobs)], target)


def arguments(kernel: Kernel, inputs: Sequence[Array]) -> list[Array]:
    """The buffers of a call: constants packed, the output undefined."""
    given = iter(inputs)
    arrays = []
    for argument in kernel.arguments:
        if argument.role == "output":
            arrays.append(undefined(argument.shape, argument.dtype))
            continue
        array = next(given)
        arrays.append(array if argument.packing is None else argument.packing.apply(array))
    return arrays


def run_here(artifact: Artifact, jobs: Sequence[Job], folder: Path, threads: int = 1) -> list[Array]:
    """The outputs of all kernels, run in this process on a pool of so many threads."""
    library = loaded(artifact, folder)
    pool = ctypes.c_void_p(library.tfb_pool_create(threads, None, 0)) if threads > 1 else None
    outputs = [
        call(library, kernel, job.inputs, pool) for kernel, job in zip(artifact.kernels, jobs, strict=True)
    ]
    if pool is not None:
        library.tfb_pool_destroy(pool)
    return outputs


def loaded(artifact: Artifact, folder: Path) -> ctypes.CDLL:
    """The artifact in this process."""
    library_path = folder / f"{artifact.sha256[:16]}.so"
    if not library_path.exists():  # a library that is loaded must not be written again
        library_path.write_bytes(artifact.code)
    library = ctypes.CDLL(str(library_path))
    library.tfb_pool_create.restype = ctypes.c_void_p
    return library


def call(
    library: ctypes.CDLL, kernel: Kernel, inputs: Sequence[Array], pool: ctypes.c_void_p | None = None
) -> Array:
    """The output of one kernel, which must write within its buffers."""
    memory = [_guarded(array) for array in arguments(kernel, inputs)]
    workspace = _guarded(np.full(kernel.workspace_bytes, GUARD_VALUE, np.uint8))
    pointers = (ctypes.c_void_p * len(memory))(*(array.ctypes.data for _, array in memory))
    status = library[kernel.symbol](pointers, ctypes.c_void_p(workspace[1].ctypes.data), pool)
    assert status == 0, f"{kernel.symbol} returned {status}"
    for raw, array in (*memory, workspace):
        _check_guards(raw, array, kernel.symbol)
    return memory[-1][1]


def _guarded(array: Array) -> tuple[Array, Array]:
    """A copy of an array in 64-byte aligned memory between guard bytes: (all bytes, the copy)."""
    raw = np.full(array.nbytes + 2 * GUARD_BYTES + ALIGNMENT_BYTES, GUARD_VALUE, np.uint8)
    start = GUARD_BYTES + -(raw.ctypes.data + GUARD_BYTES) % ALIGNMENT_BYTES
    inner = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    inner[...] = array
    return raw, inner


def _check_guards(raw: Array, array: Array, name: str) -> None:
    start = array.ctypes.data - raw.ctypes.data
    outside = np.concatenate([raw[:start], raw[start + array.nbytes :]])
    assert (outside == GUARD_VALUE).all(), f"{name} wrote outside a buffer"


def run_emulated(
    artifact: Artifact, jobs: Sequence[Job], folder: Path, command: Sequence[str]
) -> list[Array]:
    """The outputs of all kernels, run by `command` (an emulated Python) on board_runner.py."""
    plan, data, results = [], bytearray(), []
    for kernel, job in zip(artifact.kernels, jobs, strict=True):
        buffers = []
        for array in arguments(kernel, job.inputs):
            buffers.append([len(data), array.nbytes])
            data += np.ascontiguousarray(array).tobytes()
        plan.append({"symbol": kernel.symbol, "buffers": buffers, "workspace_bytes": kernel.workspace_bytes})
        results.append(kernel.arguments[-1])
    (folder / "kernels.so").write_bytes(artifact.code)
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "data.bin").write_bytes(data)
    done = subprocess.run(
        [*command, str(RUNNER), str(folder)], capture_output=True, text=True, timeout=EMULATION_TIMEOUT_S
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    content = (folder / "outputs.bin").read_bytes()
    outputs, start = [], 0
    for result in results:
        output = np.frombuffer(content, result.dtype, result.elements, start).reshape(result.shape)
        start += output.nbytes
        outputs.append(output)
    assert start == len(content)
    return outputs
