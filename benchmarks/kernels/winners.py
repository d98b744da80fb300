"""The machine code of our winning kernels, for this machine or for any board: a row an operator.

The winner is the fastest record of an operator on a board, with and without Winograd's algorithms. Where
there is no record, rows are about the schedule that needs no measurement and, of some drawn from a seed, the
one whose inner loop a model of the processor rates best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks.harness.text import aligned, thread_count
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.goals import finding
from benchmarks.kernels.results import Finding
from benchmarks.kernels.workloads import Workload
from boards.description import Board
from boards.target import Target
from cross.errors import CrossError
from cross.inspection.cpu_loops import LoopReport, inspect
from cross.loopnest.program import Programs
from cross.schedule.space import Configuration
from toolkit.records import Records
from toolkit.tuning.on_board import open_task

How = Literal["tuned", "direct", "default", "modelled"]
DRAWN = 24


@dataclass(frozen=True, slots=True)
class Winner:
    """A kernel's innermost loops that multiply and add, the hottest first, and how it was chosen."""

    name: str
    how: How
    space_key: str
    loops: tuple[LoopReport, ...]

    @property
    def spills(self) -> int:
        """Stores of registers that did not fit, and reloads, in all of these loops."""
        return sum(loop.spills for loop in self.loops)

    @property
    def cycles_per_flop(self) -> float:
        """What a model says of the hottest loop; infinite where no model speaks."""
        hot = self.loops[0] if self.loops else None
        if hot is None or not hot.predictions or not hot.flops:
            return float("inf")
        return hot.predictions[0].cycles / hot.flops


def winners(
    workloads: Iterable[Workload],
    board: Board,
    target: Target,
    records: Path,
    *,
    drawn: int = DRAWN,
    seed: int = 0,
) -> Iterator[Winner]:
    """The recorded winner of each workload, and the one without Winograd's algorithms where that is another
    search; otherwise the default schedule, and the best of so many drawn ones by a model."""
    for workload in workloads:
        best = _recorded(workload, board, target, records, "tuned")
        if best is not None:
            direct = _recorded(workload, board, target, records, "direct")
            yield best
            if direct is not None and direct.space_key != best.space_key:
                yield direct
            continue
        programs = open_task(workload.name, operator(workload), board, target).programs
        yield _winner(workload.name, "default", programs, programs.space.default())
        if drawn:
            yield _modelled(workload, board, target, drawn, seed)


def _recorded(
    workload: Workload, board: Board, target: Target, records: Path, how: Literal["tuned", "direct"]
) -> Winner | None:
    """The fastest record; None where there is none."""
    if not records.exists():
        return None
    task = open_task(workload.name, operator(workload), board, target, winograd=how == "tuned")
    with Records(records, read_only=True) as store:
        best = store.best(task.key)
    if best is None:
        return None
    return _winner(workload.name, how, task.programs, task.programs.space.parse(best.configuration))


def _modelled(workload: Workload, board: Board, target: Target, drawn: int, seed: int) -> Winner:
    """The best of a few direct schedules by cycles of the inner loop; other algorithms do other work."""
    programs = open_task(workload.name, operator(workload), board, target, winograd=False).programs
    space = programs.space
    rows = space.sample(np.random.default_rng(seed), drawn)
    candidates = [space.default(), *(space.configuration(row) for row in rows)]
    found = []
    for configuration in candidates:
        try:
            found.append(_winner(workload.name, "modelled", programs, configuration))
        except CrossError:  # code that LLVM refuses is no candidate
            continue
    return min(found, key=lambda item: item.cycles_per_flop)


def _winner(name: str, how: How, programs: Programs, configuration: Configuration) -> Winner:
    report = inspect("kernel", programs.nest(configuration), programs.space.target)
    return Winner(
        name, how, programs.space.key, tuple(loop for loop in report.loops if loop.innermost and loop.fma)
    )


def table(board: Board, target: Target, rows: Sequence[Winner]) -> Iterator[str]:
    """A line a kernel: its hottest inner loop, and the spills in all of them."""
    yield f"{board.name} ({target.name}, {target.threads} threads), innermost loops that multiply and add:"
    head = ["", "", "loops", "multiply-adds", "instructions", "share", "cycles/flop", "spills", ""]
    yield from aligned([head, *(_row(item) for item in rows)])


def _row(item: Winner) -> list[str]:
    if not item.loops:
        return [item.name, item.how, "0", "-", "-", "-", "-", "0", "pass"]
    hot, cycles = item.loops[0], item.cycles_per_flop
    counts = [str(len(item.loops)), str(hot.fma), str(hot.instructions), f"{hot.fma_share:.2f}"]
    return [
        item.name, item.how, *counts, f"{cycles:.3f}" if np.isfinite(cycles) else "-",
        str(item.spills), "FAIL" if item.spills else "pass",
    ]  # fmt: skip


def loop_findings(board: Board, target: Target, rows: Sequence[Winner]) -> Iterator[Finding]:
    """No kernel may spill in an inner loop."""
    for how in dict.fromkeys(item.how for item in rows):
        kernels = [item for item in rows if item.how == how]
        spilling = [f"{item.name} {item.spills}" for item in kernels if item.spills]
        where = f"{board.name}, {thread_count(target.threads)}"
        name = f"{where}, {len(kernels)} {how} kernels: with spills in inner loops"
        yield finding(name, 0, float(len(spilling)), at_most=True, detail=", ".join(spilling))
