"""From turns to figures: who is faster, by how much, and how sure that is.

A ratio is taken within a round, and its median over the rounds counts; its spread is the range that holds
the middle half of the rounds. Rounds in which one of the two was disturbed are left out while three others
remain.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
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

    `against`: over the best library. `direct`: the same without Winograd's algorithms, by `direct_ours`.
    `peak`: as part of the FMA rate. `roof`: as part of what this arithmetic on these bytes can reach at most;
    `bound` says which of the two is the limit.
    """

    case: Case
    ours: Series
    best: Series | None
    against: Ratio | None
    direct_ours: Series | None
    direct: Ratio | None
    peak: Ratio | None
    roof: Ratio | None
    bound: str


def standing(case: Case) -> Standing | None:
    """Our place on a case; None when we have no figure."""
    ours = own_series(case)
    if ours is None:
        return None
    direct_ours = direct_series(case)
    against, best = _against_best(case, ours)
    direct = _against_best(case, direct_ours)[0] if direct_ours else None
    fma, read = (named(case, MACHINE, name) for name in ("fma", "read"))
    peak = ratio(ours, fma) if fma else None
    moved = ratio(ours, _moving(case, read)) if read else None
    roof = max((item for item in (peak, moved) if item), key=lambda item: item.median, default=None)
    bound = "" if roof is None else "arithmetic" if roof is peak else "memory"
    return Standing(case, ours, best, against, direct_ours, direct, peak, roof, bound)


def _against_best(case: Case, ours: Series) -> tuple[Ratio | None, Series | None]:
    """Ours over the library that leaves the least, and that library's series."""
    others = [item for item in case.series if item.library not in (OWN, MACHINE) and not wrong(item)]
    rivals = [(found, series) for series in others if (found := ratio(ours, series)) is not None]
    return min(rivals, key=lambda item: item[0].median, default=(None, None))


def wrong(series: Series) -> bool:
    """Whether the output was not the operator's: such a figure is worth nothing."""
    return series.error is not None and series.error > WRONG


def own_series(case: Case) -> Series | None:
    """Our tuned kernel or bundle where there is one, otherwise the untuned kernel; None for a wrong one."""
    found = next((item for name in ("bundle", "tuned", "default") if (item := named(case, OWN, name))), None)
    return None if found is None or wrong(found) else found


def direct_series(case: Case) -> Series | None:
    """Our kernel without Winograd's algorithms: a series of its own only where those are a choice."""
    found = named(case, OWN, "direct")
    if found is None:
        return own_series(case)
    return None if wrong(found) else found


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


def by_suite(cases: Sequence[Case]) -> Iterator[tuple[int, str, list[Case]]]:
    """Threads, suite and its cases: fewer threads first, suites in the order of the cases."""
    suites = dict.fromkeys(case.suite for case in cases)
    for threads, suite in itertools.product(sorted({case.threads for case in cases}), suites):
        if members := [case for case in cases if (case.threads, case.suite) == (threads, suite)]:
            yield threads, suite, members


def launch_us(cases: Iterable[Case]) -> list[float]:
    """Microseconds of a parallel loop with nothing to do, of every turn."""
    found = [series for case in cases if (series := named(case, MACHINE, "launch")) is not None]
    return [1e6 * turn.seconds for series in found for turn in series.rounds if turn is not None]


def _moving(case: Case, read: Series) -> Series:
    """The operator as if it only moved each byte once, at the rate of the cache level that holds them."""
    return msgspec.structs.replace(read, work=read.work * case.flops / case.bytes_once)
