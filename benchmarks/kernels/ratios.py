"""From turns to figures: who is faster, by how much, and how sure that is.

A ratio is taken within a round, and its median over the rounds counts; its spread is the range that holds
the middle half of the rounds. Rounds in which one of the two was disturbed are left out while three others
remain.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import msgspec

from benchmarks.kernels.results import MACHINE, OWN, Case, Series

ENOUGH_ROUNDS = 3
WRONG = 1e-3  # relative to the largest value: beyond any rounding in float32, Winograd's too


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median over rounds, the quartiles around it, and whether all of its rounds were undisturbed."""

    median: float
    low: float
    high: float
    clean: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """Our place on one operator.

    `against`: over the best library. `peak`: as part of the FMA rate. `roof`: as part of what this arithmetic
    on these bytes can reach at most; `bound` says which of the two is the limit.
    """

    case: Case
    ours: Series
    best: Series | None
    against: Ratio | None
    peak: Ratio | None
    roof: Ratio | None
    bound: str


def standing(case: Case) -> Standing | None:
    """Our place on a case; None when we have no figure."""
    ours = own_series(case)
    if ours is None:
        return None
    others = [item for item in case.series if item.library not in (OWN, MACHINE) and not wrong(item)]
    rivals = [(found, series) for series in others if (found := ratio(ours, series)) is not None]
    against, best = min(rivals, key=lambda item: item[0].median, default=(None, None))
    fma, read = (named(case, MACHINE, name) for name in ("fma", "read"))
    peak = ratio(ours, fma) if fma else None
    moved = ratio(ours, _moving(case, read)) if read else None
    roof = max((item for item in (peak, moved) if item), key=lambda item: item.median, default=None)
    bound = "" if roof is None else "arithmetic" if roof is peak else "memory"
    return Standing(case, ours, best, against, peak, roof, bound)


def wrong(series: Series) -> bool:
    """Whether the output was not the operator's: such a figure is worth nothing."""
    return series.error is not None and series.error > WRONG


def own_series(case: Case) -> Series | None:
    """Our tuned kernel where there is one, otherwise the untuned one; None for a wrong one."""
    found = named(case, OWN, "tuned") or named(case, OWN, "default")
    return None if found is None or wrong(found) else found


def ratio(ours: Series, other: Series) -> Ratio | None:
    """Our rate over another's, round by round; None when they share no round."""
    shared = [
        (ours.work / mine.seconds / (other.work / theirs.seconds), mine.clean and theirs.clean)
        for mine, theirs in zip(ours.rounds, other.rounds, strict=True)
        if mine is not None and theirs is not None
    ]
    undisturbed = [value for value, clean in shared if clean]
    clean = len(undisturbed) >= ENOUGH_ROUNDS
    values = undisturbed if clean else [value for value, _ in shared]
    if not values:
        return None
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return Ratio(middle, low, high, clean)


def named(case: Case, library: str, variant: str) -> Series | None:
    """The series of a library's variant; None where it has none."""
    found = (item for item in case.series if (item.library, item.variant) == (library, variant))
    return next(found, None)


def _moving(case: Case, read: Series) -> Series:
    """The operator as if it only moved each byte once, at the rate of the cache level that holds them."""
    return msgspec.structs.replace(read, work=read.work * case.flops / case.bytes_once)


# -------------------------------------------------------------------------------------------------- the goals


@dataclass(frozen=True, slots=True)
class Goal:
    """What a suite must reach: geometric mean and minimum of our ratios to the best library."""

    mean: float
    worst: float | None = None


GOALS = {
    "conv": Goal(1.1, 0.9),
    "depthwise": Goal(1.0, 0.8),
    "transposed": Goal(1.3),
    "matmul": Goal(1.0, 0.8),
    "random": Goal(1.0, 1.0),  # untuned, against numpy
}

# AutoTVM itself (TVM 0.17, its x86 templates, 200 trials), GFLOP/s on one thread of a machine of
# AUTOTVM_PEAK_GFLOPS; compared as fractions of the peak.
AUTOTVM_GFLOPS = {"C2": 133.0, "C3": 99.0, "C6": 138.0, "C7": 112.0, "C9": 131.0}
AUTOTVM_PEAK_GFLOPS = 153.0
AUTOTVM_GOAL = 1.05


def against_autotvm(found: Standing) -> float | None:
    """Our fraction of the peak over AutoTVM's; None where AutoTVM's is not known."""
    theirs = AUTOTVM_GFLOPS.get(found.case.workload)
    if theirs is None or found.case.threads != 1 or found.peak is None:
        return None
    return found.peak.median / (theirs / AUTOTVM_PEAK_GFLOPS)
