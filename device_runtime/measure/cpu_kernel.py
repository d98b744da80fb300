"""A kernel of a CPU artifact in a measurement's child: loaded, with its memory and threads, called and timed.

The C ABI is cross/native/tfb.h; every artifact exports the pool, the timing loop and the comparisons.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

from device_runtime.measure.check import Difference, compare
from device_runtime.measure.timer import time_kernel
from device_runtime.measure.trial import ALONE, BACKWARDS, Trial, carry_out
from device_runtime.protocol import MAX_STEPS, BufferRequest, MeasureRequest, Timing, unwritten_byte
from device_runtime.sandbox.float_mode import float_mode
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

ABI_VERSION = 1
ERROR_WORDS = 200


def run_kernel(path: str, request: MeasureRequest, inputs: Mapping[str, Region]) -> Dict[str, Any]:
    """What trial.carry_out answers; `inputs` holds the objects that the request names.

    Raises Fault for what is wrong with the artifact.
    """
    library, symbol = _load(path, request.symbol)
    pool = _make_pool(library, request.threads, request.cores)
    return carry_out(_CpuTrial(library, symbol, pool, request, inputs), request)


class _CpuTrial(Trial):
    def __init__(
        self,
        library: ctypes.CDLL,
        symbol: int,
        pool: int,
        request: MeasureRequest,
        inputs: Mapping[str, Region],
    ) -> None:
        self._library, self._symbol, self._pool = library, symbol, pool
        self._request = request
        self._inputs = inputs
        self._wanted = [sha for data in request.data_sets for sha in data]
        self._own: List[Region] = []
        self._at_start = False

    def put(self, data: Sequence[str], at_start: bool) -> None:
        if not self._own or at_start != self._at_start:
            self._allocate(data, at_start)
        else:
            self._exchange(data)
        self._pointers = (ctypes.c_void_p * len(self._own))(*[region.address for region in self._own])
        for buffer, region in zip(self._request.buffers, self._own):
            if buffer.role == "output":
                region.fill(unwritten_byte(buffer.dtype))
                self._workspace.fill(unwritten_byte(buffer.dtype))

    def _allocate(self, data: Sequence[str], at_start: bool) -> None:
        self._own.clear()  # before others take their memory
        self._held = list(data)
        self._workspace = Region(self._request.workspace_bytes, at_start)
        self._own += [
            self._inputs[sha] if buffer.role == "input" else Region(buffer.size_bytes, at_start)
            for buffer, sha in zip(self._request.buffers, data)
        ]
        self._at_start = at_start

    def _exchange(self, data: Sequence[str]) -> None:
        """Other inputs at the same addresses: a kernel that knows its inputs by these would take them for the
        old ones. Objects that are wanted in several places stay where they are."""
        for place, (buffer, sha) in enumerate(zip(self._request.buffers, data)):
            if buffer.role != "input" or self._held[place] == sha:
                continue
            old, new = self._own[place], self._inputs[sha]
            self._held[place] = sha
            if self._once({sha, buffer.sha}) and new.fits(old) and self._inputs[buffer.sha] is old:
                new.move_to(old)
            else:
                self._own[place] = new

    def _once(self, shas: Set[str]) -> bool:
        """Whether each of these objects is wanted in one place of one set only."""
        return all(self._wanted.count(sha) == 1 for sha in shas)

    def call(self, order: str) -> None:
        mode = float_mode()
        status = self._library.tfb_call(
            self._symbol,
            self._pointers,
            self._workspace.address,
            None if order == ALONE else self._pool,
            order == BACKWARDS,
        )
        if status != 0:
            raise Fault("crash", f"kernel {self._request.symbol} returned {status}, expected 0")
        _same_mode(mode)

    def time(self, timing: Timing) -> Tuple[List[float], int]:
        mode = float_mode()
        call = (self._symbol, ctypes.addressof(self._pointers), self._workspace.address, self._pool)
        timed = time_kernel(self._library, call, timing)
        _same_mode(mode)
        return timed

    def step_seconds(self, runs: int) -> List[float]:
        try:
            count = self._library.tfb_model_step_count()
            function = self._library.tfb_model_steps
        except AttributeError:  # a kernel, or a model that was packed before there were such functions
            return []
        if not 0 <= count <= MAX_STEPS:
            raise Fault("crash", f"the model says that it has {count} steps")
        function.argtypes = (*[ctypes.c_void_p] * 4,)
        spent: List[List[int]] = []
        for _ in range(runs):
            spent_ns = (ctypes.c_int64 * max(1, count))()
            status = function(self._pointers, self._workspace.address, self._pool, spent_ns)
            if status != 0:
                raise Fault("crash", f"the model returned {status}, expected 0")
            spent.append(list(spent_ns[:count]))
        return [max(0.0, 1e-9 * sorted(step)[len(step) // 2]) for step in zip(*spent)]

    def differences(self, data: Sequence[str]) -> List[Tuple[BufferRequest, Difference]]:
        return [
            (
                buffer,
                compare(
                    self._library, buffer.dtype, region.address, self._inputs[sha].address, buffer.elements
                ),
            )
            for buffer, region, sha in zip(self._request.buffers, self._own, data)
            if buffer.role == "output" and sha
        ]

    def strayed(self) -> str:
        regions = {f"buffer {place}": region for place, region in enumerate(self._own)}
        regions["the workspace"] = self._workspace
        found = [f"{region.strayed()} of {name}" for name, region in regions.items() if region.strayed()]
        return ", ".join(found)


def _same_mode(before: bytes) -> None:
    if float_mode() != before:
        raise Fault("wrong_answer", "it changed the rounding mode or the handling of denormal numbers")


def _load(path: str, symbol: str) -> Tuple[ctypes.CDLL, int]:
    """The artifact and the address of its kernel."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        library.tfb_abi_version.restype = ctypes.c_int32
        library.tfb_call.restype = ctypes.c_int32
        library.tfb_call.argtypes = (*[ctypes.c_void_p] * 4, ctypes.c_int32)
        version = library.tfb_abi_version()
        kernel = library[symbol]
    except (OSError, AttributeError) as error:
        raise Fault("link", f"the artifact cannot be loaded: {str(error)[:ERROR_WORDS]}") from None
    if version != ABI_VERSION:
        raise Fault("link", f"the artifact has ABI version {version}, this runtime {ABI_VERSION}")
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    assert address is not None
    return library, address


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
