"""A library's turn: the same loop around everybody's call, in batches, with disturbed batches told apart.

A batch is disturbed when the process's threads stood ready without a core for more than a fiftieth of it, as
they do while somebody else's program runs; Linux counts that in schedstat. Standard library only.
"""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Callable
from dataclasses import dataclass

Call = Callable[[], object]

WAITED_SHARE = 0.02
WARM_S = 0.002  # the caches hold another process's data when a turn begins
MOST_CALLS = 100_000


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds per call of each batch, undisturbed ones (`kept`) and others; `calls` in a batch."""

    kept: tuple[float, ...]
    disturbed: tuple[float, ...]
    calls: int


def waited_ns() -> int:
    """Nanoseconds that this process's threads were ready to run but had no core."""
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:
            total += int(file.read().split()[1])  # a thread that has ended since counts nothing
    return total


def take_turn(call: Call, *, batches: int, batch_s: float, patience: int = 4) -> Turn:
    """Time `call` until so many batches of about `batch_s` seconds are undisturbed, or `patience` times as
    many were taken."""
    calls = _calls_in_a_batch(call, batch_s)
    kept: list[float] = []
    disturbed: list[float] = []
    while len(kept) < batches and len(kept) + len(disturbed) < patience * batches:
        waited = waited_ns()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        took_s = time.perf_counter() - start
        clean = (waited_ns() - waited) * 1e-9 <= WAITED_SHARE * took_s
        (kept if clean else disturbed).append(took_s / calls)
    return Turn(tuple(kept), tuple(disturbed), calls)


def _calls_in_a_batch(call: Call, batch_s: float) -> int:
    """Warm up, and judge by the fastest call how many make a batch."""
    fastest_s, spent_s, made = batch_s, 0.0, 0
    while made < 2 or (spent_s < WARM_S and made < MOST_CALLS):
        start = time.perf_counter()
        call()
        took_s = time.perf_counter() - start
        fastest_s, spent_s, made = min(fastest_s, took_s), spent_s + took_s, made + 1
    return max(1, min(MOST_CALLS, int(batch_s / max(fastest_s, 1e-9))))
