"""Clusters of cores of different speed as one target: `a72+a53` of a board with the targets a72 and a53."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import msgspec

from boards.errors import UnfitTargets
from boards.target import IN_ORDER_CPUS, Target

SIGN = "+"

_LEAST = (
    "vector_bytes", "vector_registers", "cache_line_bytes", "l1d_bytes", "l1i_bytes", "l2_bytes", "l3_bytes",
)  # fmt: skip


def joined(board: str, parts: Sequence[Target]) -> Target:
    """One target on the cores of several, in their order: threads that run shares of the same kernels.

    Its code is for what all parts have: the least of vectors and caches, features in common. Where one part
    issues in order, instructions are ordered for that one: the others reorder them as they run (what that
    costs them was never measured). Clock and operations of a cycle are such that its estimated peak is the
    sum of the parts'. `machine` names the parts' CPUs and their numbers of cores, for the key of records.

    Raises UnfitTargets: parts that are no CPUs, of different architectures, or share cores.
    """
    name = SIGN.join(part.name for part in parts)
    for part in parts:
        if part.kind != "cpu":
            raise UnfitTargets(board, name, f"{part.name} is no CPU (its kind is {part.kind!r})")
    for one, other in combinations(parts, 2):
        if one.triple != other.triple:
            raise UnfitTargets(board, name, f"{one.name} is {one.triple}, {other.name} is {other.triple}")
        if shared := sorted(set(one.cores) & set(other.cores)):
            raise UnfitTargets(board, name, f"{one.name} and {other.name} share cores ({shared[0]})")
    base = next((part for part in parts if part.cpu in IN_ORDER_CPUS), parts[-1])
    cores = tuple(core for part in parts for core in part.cores)
    cycles = math.fsum(part.clock_hz * part.threads for part in parts)
    flops = math.fsum(part.clock_hz * part.threads * part.flops_per_cycle for part in parts)
    peaks = [part.peak_gflops for part in parts if part.peak_gflops is not None]
    bandwidths = [part.measured_bandwidth_gbs for part in parts if part.measured_bandwidth_gbs is not None]
    found: Target = msgspec.structs.replace(
        base,
        name=name,
        features=tuple(one for one in base.features if all(one in part.features for part in parts)),
        machine=SIGN.join(f"{part.threads}x{part.machine or part.cpu}" for part in parts),
        cores=cores,
        clock_hz=cycles / len(cores),
        flops_per_cycle=flops / cycles,
        peak_gflops=math.fsum(peaks) if len(peaks) == len(parts) else None,
        measured_bandwidth_gbs=max(bandwidths, default=None),
        **{key: min(getattr(part, key) for part in parts) for key in _LEAST},
    )
    return found
