"""Compiled code in this process: a shared object that stays loaded, its thread pool, and kernels to call.

Kernels have the ABI of cross/native/tfb.h. Only benchmarks do this: everywhere else a kernel runs on the
board, in a child of the device runtime.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.kernels.turn import Call
from benchmarks.kernels.workloads import Array

ALIGNMENT_BYTES = 64


def aligned(array: Array) -> Array:
    """A contiguous copy that starts at a multiple of 64 bytes."""
    raw = np.empty(array.nbytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    copy: Array = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class LoadedCode:
    """A shared object with kernels, and a pool pinned to `cores` where there are several; close it."""

    def __init__(self, code: bytes, cores: Sequence[int]) -> None:
        self._library = _loaded(code)
        self._library.tfb_pool_create.restype = ctypes.c_void_p
        self._pool = ctypes.c_void_p()
        if len(cores) > 1:  # on one thread nobody is pinned, as no other library is
            numbers = (ctypes.c_int32 * len(cores))(*cores)
            self._pool = ctypes.c_void_p(self._library.tfb_pool_create(len(cores), numbers, len(cores)))
        self._buffers: list[Any] = []

    def kernel(self, symbol: str, arrays: Sequence[Array], workspace_bytes: int = 0) -> Call:
        """A call of a kernel on aligned arrays, inputs first, output last. Runs it once.

        Raises:
            RuntimeError: the kernel says that it failed.
        """
        workspace = aligned(np.zeros(max(workspace_bytes, 1), np.uint8))
        pointers = _pointers(arrays)
        self._buffers += [workspace, pointers, *arrays]  # alive as long as somebody may call
        address = ctypes.c_void_p(workspace.ctypes.data)
        return _tried(symbol, partial(self._library[symbol], pointers, address, self._pool))

    def close(self) -> None:
        """End the pool's threads and let go of the arrays; the code stays mapped."""
        if self._pool:
            self._library.tfb_pool_destroy(self._pool)
            self._pool = ctypes.c_void_p()
        self._buffers.clear()


class LoadedModel:
    """A bundle's library as an application uses it (toolkit/bundle/model.h); close it.

    On one thread nobody is pinned, as no other library is.

    Raises:
        RuntimeError: the instance cannot be made.
    """

    def __init__(self, code: bytes, cores: Sequence[int]) -> None:
        self._library = _loaded(code)
        self._instance = ctypes.c_void_p()
        numbers = (ctypes.c_int32 * len(cores))(*cores)
        pinned = len(cores) if len(cores) > 1 else 0
        instance = ctypes.byref(self._instance)
        _tried("create", partial(self._library.tfb_model_create_on, instance, len(cores), numbers, pinned))
        self._buffers: list[Any] = []

    def inference(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A call of the whole model on aligned arrays. Runs it once.

        Raises:
            RuntimeError: the model says that it failed.
        """
        pointers = [_pointers(arrays) for arrays in (inputs, outputs)]
        self._buffers += [*pointers, *inputs, *outputs]  # alive as long as somebody may call
        return _tried("model", partial(self._library.tfb_model_run, self._instance, *pointers))

    def close(self) -> None:
        """End the instance; the code stays mapped."""
        self._library.tfb_model_destroy(self._instance)
        self._instance = ctypes.c_void_p()
        self._buffers.clear()


def _pointers(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def _tried(name: str, call: Callable[[], int]) -> Call:
    """The call, which has worked once. Raises RuntimeError."""
    if status := call():
        raise RuntimeError(f"{name} returned {status}, expected 0")
    return call


def _loaded(code: bytes) -> ctypes.CDLL:
    with tempfile.NamedTemporaryFile(suffix=".so", prefix="tfb-bench-") as file:
        file.write(code)
        file.flush()
        return ctypes.CDLL(file.name)
