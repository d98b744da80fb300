"""The same model by ONNX Runtime on this machine's CPU, to compare a bundle with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.bundle.manifest import Manifest
from toolkit.bundle.pack import GoldenData
from toolkit.errors import InputError, MissingExtra, VerificationError
from toolkit.model.onnx_file import constant_of
from toolkit.model_job.latency import WARMUP, runs_of_block
from toolkit.model_job.options import Latency

Array = NDArray[Any]


def open_peer(
    path: Path | str | None,
    bundle: Manifest,
    golden: GoldenData,
    threads: int,
    constants: Mapping[str, Sequence[float]],
) -> Callable[[float], Latency]:
    """A function that times a block of runs, which take about so many seconds each, by so many threads.

    constants: what further inputs of the model hold, one number for all elements or one for each.

    Raises MissingExtra, InputError for a file that is not the bundle's model, VerificationError where it
    computes something else than the bundle's golden outputs.
    """
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as errors
    except ImportError as error:
        raise MissingExtra(
            "ONNX Runtime is not installed: pip install 'tune-for-board[onnxruntime]'"
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [spec.name for spec in bundle.inputs]
        feeds = dict(zip(names, golden.inputs, strict=True))
        feeds |= {
            item.name: _held(constants[item.name], item.type, item.shape)
            for item in session.get_inputs()
            if item.name in constants
        }
        outputs = session.run([spec.name for spec in bundle.outputs], feeds)
    except (
        ValueError, TypeError, errors.Fail, errors.InvalidArgument, errors.InvalidGraph,
        errors.InvalidProtobuf, errors.NoSuchFile, errors.NotImplemented, errors.RuntimeException,
    ) as error:  # fmt: skip
        raise InputError(f"ONNX Runtime cannot run {path} in the place of the bundle: {error}") from error
    found = max(map(_error, outputs, golden.outputs))
    if not found <= golden.rtol:
        raise VerificationError(
            f"ONNX Runtime computes by {path} something else than the bundle's reference: relative error "
            f"{found:.1e}, expected at most {golden.rtol:g}; is it the model that was tuned?"
        )

    def block(expected_s: float) -> Latency:
        seconds = []
        for _ in range(WARMUP + runs_of_block(expected_s)):
            started_s = time.perf_counter()
            session.run(None, feeds)
            seconds.append(time.perf_counter() - started_s)
        return Latency(tuple(seconds[WARMUP:]), found, tuple(seconds[:1]))

    return block


def _held(numbers: Sequence[float], kind: str, shape: Sequence[Any]) -> Array:
    """Numbers as an input of ONNX Runtime: `kind` is its name for the type, as in tensor(int64).

    Raises ValueError.
    """
    name = kind.removeprefix("tensor(").removesuffix(")")
    extents = tuple(extent if isinstance(extent, int) else len(numbers) for extent in shape)
    array = constant_of(numbers, extents, {"float": "float32", "double": "float64"}.get(name, name))
    if array is None:
        raise ValueError(f"--constant gives {list(numbers)}, expected {kind} of the shape {list(shape)}")
    return array


def _error(found: Any, expected: Any) -> float:
    """max |error| / max |expected|."""
    if found.shape != expected.shape:
        return float("inf")
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    scale = max(float(np.max(np.abs(expected.astype(np.float64)), initial=0.0)), 1e-30)
    return float(np.max(difference, initial=0.0)) / scale
