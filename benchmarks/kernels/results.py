"""What was measured, as a file: every turn of every library, so that any figure can be computed again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from benchmarks.harness import documents

SCHEMA: Final = "tune-for-board/kernel-benchmark"
VERSION: Final = 2

OWN, MACHINE = "ours", "machine"
BEFORE = "before"  # ours, from another checkout
ENOUGH_BATCHES = 3


class Sample(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One turn: seconds per call, and how many batches were kept and how many disturbed.

    `seconds` is the median of the undisturbed batches or, where there are too few of them, the best of all,
    because a disturbance only ever adds time.
    """

    seconds: float
    kept: int
    disturbed: int

    @property
    def clean(self) -> bool:
        """Whether the figures are those of undisturbed batches."""
        return self.kept >= ENOUGH_BATCHES


def sample(kept: Sequence[float], disturbed: Sequence[float]) -> Sample:
    """A turn's batches as one figure."""
    enough = len(kept) >= ENOUGH_BATCHES
    seconds = statistics.median(kept) if enough else min([*kept, *disturbed])
    return Sample(seconds=seconds, kept=len(kept), disturbed=len(disturbed))


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way of calling one library, over the rounds (None: it failed in that round).

    `error`: the largest absolute error over the largest absolute value expected, against float64; None where
    there was nothing to compare. `work`: operations or bytes of one call. `facts`: what the variant says of
    how it is made, ours of its kernel (own_worker.py).
    """

    library: str
    variant: str
    error: float | None
    work: float
    facts: dict[str, str | float] = {}
    rounds: tuple[Sample | None, ...]

    @property
    def name(self) -> str:
        """Library and variant."""
        return f"{self.library} {self.variant}"

    def rate(self, number: int) -> float | None:
        """GFLOP/s (or GB/s) in a round."""
        turn = self.rounds[number]
        return None if turn is None else self.work / turn.seconds * 1e-9

    @property
    def gflops(self) -> float:
        """Median over the rounds; 0 where no round has a figure."""
        rates = [rate for number in range(len(self.rounds)) if (rate := self.rate(number)) is not None]
        return statistics.median(rates) if rates else 0.0


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One operator on so many threads, with the reason for every library that has no figure."""

    workload: str
    suite: str
    shape: str
    threads: int
    flops: int
    bytes_once: int
    series: tuple[Series, ...]
    not_measured: dict[str, str]


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One goal and what was found. `at_most`: the goal is an upper limit, otherwise a lower one.

    `found` and `reached` are None where not everything was measured that the goal is about; `detail` says
    what is missing, or which operators are the reason.
    """

    name: str
    goal: float
    at_most: bool = False
    found: float | None
    reached: bool | None
    detail: str = ""


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run. `libraries`: versions and settings by library; `machine`: what it ran on.

    `complete`: everything that was asked for is in it. `goals`: what the cases say about them.
    """

    schema: Literal["tune-for-board/kernel-benchmark"] = SCHEMA
    version: Literal[2] = VERSION
    started: str
    machine: dict[str, str]
    plan: dict[str, float]
    libraries: dict[str, dict[str, str]]
    complete: bool = False
    goals: tuple[Finding, ...] = ()
    cases: tuple[Case, ...]


class GoalReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Goals by themselves: of a command that measures no operators, or of several reports together."""

    schema: Literal["tune-for-board/kernel-benchmark-goals"] = "tune-for-board/kernel-benchmark-goals"
    version: Literal[1] = 1
    goals: tuple[Finding, ...]


def read(path: Path) -> Report:
    """The report in a file. Raises NoDocument."""
    return documents.read(path, Report)


def read_goals(path: Path) -> tuple[Finding, ...]:
    """The goals in a report's file, of either kind. Raises NoDocument."""
    alone = documents.kept(path, GoalReport)
    return read(path).goals if alone is None else alone.goals
