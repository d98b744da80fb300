"""Time a kernel with the artifact's own native loop, so that no interpreter is in the figure."""

from __future__ import annotations

import ctypes
from typing import List, Tuple

from device_runtime.protocol import Timing
from device_runtime.sandbox.isolation import Fault

SHORTEST_S = 1e-12  # a clock that did not move is not a time of zero

ERRORS = {
    -1: ("crash", "the kernel returned an error"),
    -2: ("crash", "tfb_time refused its arguments"),
    -3: ("out_of_memory", "no memory for the cache flush"),
}


class _Timing(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_int64),
        ("max_number", ctypes.c_int64),
        ("repeat", ctypes.c_int32),
        ("warmup", ctypes.c_int32),
        ("min_repeat_s", ctypes.c_double),
        ("cooldown_s", ctypes.c_double),
        ("give_up_s", ctypes.c_double),
        ("flush_bytes", ctypes.c_int64),
    )


def time_kernel(
    library: ctypes.CDLL, call: Tuple[int, object, int, object], timing: Timing
) -> Tuple[List[float], int]:
    """Seconds per call of each repeat, and calls per repeat.

    `call` is (kernel address, buffers, workspace address, pool), as tfb_time takes them. Raises Fault.
    """
    function = library["tfb_time"]
    function.restype = ctypes.c_int32
    function.argtypes = (*[ctypes.c_void_p] * 7,)
    native = _Timing(
        timing.number,
        timing.max_number,
        timing.repeat,
        timing.warmup,
        timing.min_repeat_ms * 1e-3,
        timing.cooldown_s,
        timing.give_up_s,
        timing.flush_bytes,
    )
    seconds = (ctypes.c_double * timing.repeat)()
    number_used = ctypes.c_int64()
    written = function(*call, ctypes.byref(native), seconds, ctypes.byref(number_used))
    if not 0 < written <= timing.repeat:
        raise Fault(*ERRORS.get(written, ("crash", f"tfb_time returned {written}")))
    return [max(SHORTEST_S, value) for value in seconds[:written]], number_used.value
