"""Requests for the kernels of fault_kernels.c."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import numpy as np

from device_runtime.measure.trial import TIMED_CALLS
from device_runtime.protocol import BufferRequest, MeasureRequest, Timing
from toolkit.measure.session import Session

ELEMENTS = 1024
WORKSPACE_BYTES = 100
CALLS = 2 * TIMED_CALLS * 4
"""Enough timed calls for a kernel of two threads to be called apart on four sets of data, however long
they take on a busy machine."""
QUICK = Timing(number=CALLS // 2, repeat=2, min_repeat_ms=0.1, warmup=1)
TIMEOUT_S = 0.5
ENDING_S = 5.0  # a process that was killed takes milliseconds to end


class Kernels:
    """The shared object and its data on one board; `request(symbol)` asks for one kernel."""

    def __init__(self, session: Session, code: bytes, timeout_s: float = 10.0) -> None:
        self.device_dir = session.board.link.device_dir
        self.module = session.put(code)
        values = np.arange(ELEMENTS, dtype=np.float32) - 500
        self.input = session.put(values.tobytes())
        self.expected = session.put((2 * values).tobytes())
        large, sparse = 64 * values[::-1], np.where(np.arange(ELEMENTS) % 4, np.float32(0), values)
        self.more_data = tuple(
            (session.put(other.tobytes()), session.put((2 * other).tobytes())) for other in (large, sparse)
        )
        self.timeout_s = timeout_s

    def request(
        self, symbol: str, timing: Timing | None = QUICK, timeout_s: float = 0.0, threads: int = 1
    ) -> MeasureRequest:
        """Check `symbol` on three sets of data and time it on the first."""
        return MeasureRequest(
            module=self.module,
            symbol=symbol,
            buffers=(
                BufferRequest("input", "float32", ELEMENTS, self.input),
                BufferRequest("output", "float32", ELEMENTS, self.expected),
            ),
            workspace_bytes=WORKSPACE_BYTES,
            more_data=self.more_data,
            timing=timing,
            threads=threads,
            timeout_s=timeout_s or self.timeout_s,
        )


def kernel_processes(kernels: Kernels) -> set[int]:
    """All processes of this machine that have the board's shared object of these kernels in memory."""
    found, code = set(), f"{kernels.device_dir}/objects/{kernels.module}"
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if code in (folder / "maps").read_text():
                    found.add(int(folder.name))
            except OSError:
                continue  # it has gone, or is somebody else's
    return found


def left_behind(kernels: Kernels, before: Collection[int] = ()) -> set[int]:
    """Processes of these kernels that did not run `before` and do not end. The board may answer before."""
    deadline = time.monotonic() + ENDING_S
    while (left := kernel_processes(kernels).difference(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def assert_right(session: Session, kernels: Kernels) -> None:
    """The board measures a kernel that is right."""
    result = session.measure(kernels.request("right"))
    assert result.error is None
    assert len(result.seconds) == 2
    assert all(seconds > 0 for seconds in result.seconds)
    assert result.max_abs_error == 0
    assert result.max_abs_reference == 1046
