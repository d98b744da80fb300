"""What a measurement's child does with a CPU kernel: load, call once, check, time, check again.

The C ABI is cross/native/tfb.h; every artifact exports the pool, the timing loop and the comparisons.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, List, Mapping, Tuple

from device_runtime.buffers import Region
from device_runtime.check import checked, compare, unwritten_byte
from device_runtime.isolation import Fault
from device_runtime.protocol import MeasureRequest
from device_runtime.timer import time_kernel

ABI_VERSION = 1
ERROR_WORDS = 200


def run_kernel(path: str, request: MeasureRequest, inputs: Mapping[str, Region]) -> Dict[str, Any]:
    """Entries of MeasureResult: seconds, number, max_abs_error, max_abs_reference, and failure when wrong.

    `inputs` holds the objects that the request names. Raises Fault for what is wrong with the artifact.
    """
    library, symbol = _load(path, request.symbol)
    own = [
        inputs[buffer.sha] if buffer.role == "input" else Region(buffer.size_bytes)
        for buffer in request.buffers
    ]
    workspace = Region(request.workspace_bytes)
    pool = _make_pool(library, request.threads, request.cores)
    buffers = (ctypes.c_void_p * len(own))(*[region.address for region in own])
    for buffer, region in zip(request.buffers, own):
        if buffer.role == "output":
            region.fill(unwritten_byte(buffer.dtype))

    status = symbol(buffers, workspace.address, pool)
    if status != 0:
        raise Fault("crash", f"kernel {request.symbol} returned {status}, expected 0")
    answer = _check(library, request, own, inputs)
    if "failure" in answer or request.timing is None:
        return answer
    address = ctypes.cast(symbol, ctypes.c_void_p).value
    assert address is not None
    call = (address, ctypes.addressof(buffers), workspace.address, pool)
    seconds, number = time_kernel(library, call, request.timing)
    answer = _check(library, request, own, inputs)  # right at first and wrong later is wrong
    return answer if "failure" in answer else {**answer, "seconds": seconds, "number": number}


def _load(path: str, symbol: str) -> Tuple[ctypes.CDLL, Any]:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        library.tfb_abi_version.restype = ctypes.c_int32
        version = library.tfb_abi_version()
        kernel = library[symbol]
    except (OSError, AttributeError) as error:
        raise Fault("link", f"the artifact cannot be loaded: {str(error)[:ERROR_WORDS]}") from None
    if version != ABI_VERSION:
        raise Fault("link", f"the artifact has ABI version {version}, this runtime {ABI_VERSION}")
    kernel.restype = ctypes.c_int32
    kernel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return library, kernel


def _make_pool(library: ctypes.CDLL, threads: int, cores: Tuple[int, ...]) -> int:
    library.tfb_pool_create.restype = ctypes.c_void_p
    library.tfb_pool_create.argtypes = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)
    library.tfb_pool_threads.restype = ctypes.c_int32
    library.tfb_pool_threads.argtypes = (ctypes.c_void_p,)
    pool: int = library.tfb_pool_create(threads, (ctypes.c_int32 * len(cores))(*cores), len(cores))
    started = library.tfb_pool_threads(pool) if pool else 0
    if started != threads:
        raise Fault("out_of_memory", f"the system started {started} of {threads} threads")
    return pool


def _check(
    library: ctypes.CDLL, request: MeasureRequest, own: List[Region], inputs: Mapping[str, Region]
) -> Dict[str, Any]:
    found = [
        (buffer, compare(library, buffer.dtype, region.address, inputs[buffer.sha].address, buffer.elements))
        for buffer, region in zip(request.buffers, own)
        if buffer.role == "output" and buffer.sha
    ]
    return checked(found, request.rtol)
