"""How long a parallel loop takes on cores of different speed, counted by the rules of cross/native/pool.c."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from benchmarks.counted.traffic import chunks

PIECES = 4  # of what is left of a share, as in pool.c


def longest(extent: int, speeds: Sequence[float], *, helping: bool) -> float:
    """Time until the last thread is done with `extent` iterations, in that of one on a core of speed 1.

    speeds: of the threads' cores. helping: a share is taken piece by piece, and by threads that are done.
    """
    shares = chunks(extent, len(speeds))
    if not helping or extent <= len(speeds):
        return max(share / speed for share, speed in zip(shares, speeds, strict=True))
    waiting, end_s = [(0.0, thread) for thread in range(len(speeds))], 0.0
    while waiting:
        now_s, thread = heapq.heappop(waiting)
        if not shares[thread]:
            others = ((thread + step) % len(speeds) for step in range(1, len(speeds)))
            other = next((one for one in others if shares[one]), None)
            if other is None:
                end_s = max(end_s, now_s)
                continue
            shares[thread] = -(-shares[other] // 2)
            shares[other] -= shares[thread]
        piece = -(-shares[thread] // PIECES)
        shares[thread] -= piece
        heapq.heappush(waiting, (now_s + piece / speeds[thread], thread))
    return end_s
