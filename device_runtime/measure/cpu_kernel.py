"""A kernel of a CPU artifact in a measurement's child: loaded, with its memory and threads, called and timed.

The C ABI is cross/native/tfb.h; every artifact exports the pool, the timing loop and the comparisons.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from typing import Any, Dict, List, Sequence, Tuple

from device_runtime.measure.check import Difference, compare
from device_runtime.measure.timer import time_kernel
from device_runtime.measure.trial import TOGETHER, DataSet, Trial, carry_out
from device_runtime.protocol import MAX_STEPS, BufferRequest, MeasureRequest, Timing, unwritten_byte
from device_runtime.sandbox.float_mode import float_mode
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

ABI_VERSION = 2
ERROR_WORDS = 200
STALE = (0xFF, 0x7E, 0xFE)
"""Bytes that a workspace holds in turn: NaN, 8.4e37, -1.7e38. No maximum and no minimum leaves all out."""
CALL_ERRORS = {
    -3: ("out_of_memory", "no memory for the copies of a call with its iterations apart"),
    -4: ("wrong_answer", "it wrote to the stack above its own"),
    -5: ("wrong_answer", "iterations of a parallel loop wrote different values to one place"),
    -6: ("launch", "it needs tile registers (AMX), which the system does not let this process use"),
}


class _Written(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("bytes", ctypes.c_int64))


def run_kernel(path: str, request: MeasureRequest, sets: Sequence[DataSet]) -> Dict[str, Any]:
    """What trial.carry_out answers, and `cpu_s`.

    Raises Fault for what is wrong with the artifact.
    """
    library, symbol = _load(path, request.symbol)
    pool = _make_pool(library, request.threads, request.cores)
    answer = carry_out(_CpuTrial(library, symbol, pool, request, sets), request, sets)
    answer["cpu_s"] = time.process_time()
    return answer


class _CpuTrial(Trial):
    def __init__(
        self,
        library: ctypes.CDLL,
        symbol: int,
        pool: int,
        request: MeasureRequest,
        sets: Sequence[DataSet],
    ) -> None:
        self._library, self._symbol, self._pool = library, symbol, pool
        self._request = request
        self._timed = sets[0]
        self._wanted = Counter(region for data in sets for region in data)
        self._own: List[Region] = []
        # Behind these addresses lie canaries, which are addresses of nothing, and then a guard page.
        self._addresses = Region(len(request.buffers) * ctypes.sizeof(ctypes.c_void_p))
        self._pointers = (ctypes.c_void_p * len(request.buffers)).from_address(self._addresses.address)
        self._at_start = False
        self._puts = 0
        self._mode = float_mode()

    def put(self, data: DataSet, at_start: bool) -> None:
        if not self._own or at_start != self._at_start:
            self._allocate(data, at_start)
        else:
            self._exchange(data)
        self._pointers[:] = [region.address for region in self._own]
        for buffer, region in zip(self._request.buffers, self._own):
            if buffer.role == "output":
                region.fill(unwritten_byte(buffer.dtype))
        self._workspace.fill(STALE[self._puts % len(STALE)])
        self._puts += 1

    def _allocate(self, data: DataSet, at_start: bool) -> None:
        self._own.clear()  # before others take their memory
        self._held = list(data)
        self._workspace = Region(self._request.workspace_bytes, at_start)
        self._own += [
            found if found and buffer.role == "input" else Region(buffer.size_bytes, at_start)
            for buffer, found in zip(self._request.buffers, data)
        ]
        self._at_start = at_start

    def _exchange(self, data: DataSet) -> None:
        """Other inputs, those of one set at the addresses of the timed ones: a kernel that knows its inputs
        by these would take them for the old ones. What is wanted in several places or sets stays where it is,
        as do the inputs of later sets: moving pages takes longer than running a small kernel."""
        for place, (buffer, new) in enumerate(zip(self._request.buffers, data)):
            if buffer.role != "input" or new is None or self._held[place] is new:
                continue
            old, held = self._own[place], self._held[place]
            self._held[place] = new
            first = held is self._timed[place] is old
            if first and self._wanted[old] == self._wanted[new] == 1 and new.fits(old):
                new.move_to(old)
            else:
                self._own[place] = new

    def call(self, order: int) -> None:
        written = [
            _Written(region.address, region.size_bytes)
            for buffer, region in zip(self._request.buffers, self._own)
            if buffer.role == "output"
        ] + [_Written(self._workspace.address, self._workspace.size_bytes)]
        status = self._library.tfb_call(
            self._symbol,
            self._pointers,
            self._workspace.address,
            self._pool if order == TOGETHER else None,
            (_Written * len(written))(*written),
            len(written) if order >= 0 else 0,
            max(order, 0),
        )
        if status != 0:
            text = f"kernel {self._request.symbol} returned {status}, expected 0"
            raise Fault(*CALL_ERRORS.get(status, ("crash", text)))
        self._refuse_other_mode()

    def time(self, timing: Timing) -> Tuple[List[float], int]:
        call = (self._symbol, ctypes.addressof(self._pointers), self._workspace.address, self._pool)
        timed = time_kernel(self._library, call, timing)
        self._refuse_other_mode()
        return timed

    def _refuse_other_mode(self) -> None:
        if float_mode() != self._mode:
            raise Fault("wrong_answer", "it changed the rounding mode or the handling of denormal numbers")

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

    def differences(self, data: DataSet) -> List[Tuple[BufferRequest, Difference]]:
        return [
            (
                buffer,
                compare(
                    self._library,
                    buffer.dtype,
                    own.address,
                    wanted.address,
                    buffer.elements,
                    buffer.bounds,
                ),
            )
            for buffer, own, wanted in zip(self._request.buffers, self._own, data)
            if buffer.role == "output" and wanted
        ]

    def strayed(self) -> str:
        regions = {f"buffer {place}": region for place, region in enumerate(self._own)}
        regions["the workspace"] = self._workspace
        regions["the table of addresses"] = self._addresses
        found = [f"{region.strayed()} of {name}" for name, region in regions.items() if region.strayed()]
        return ", ".join(found)


def _load(path: str, symbol: str) -> Tuple[ctypes.CDLL, int]:
    """The artifact and the address of its kernel."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        library.tfb_abi_version.restype = ctypes.c_int32
        library.tfb_call.restype = ctypes.c_int32
        library.tfb_call.argtypes = (*[ctypes.c_void_p] * 5, ctypes.c_int32, ctypes.c_int32)
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
