"""Where a search begins: with the untuned program and those like it, or anywhere (`tune --first`).

    python -m benchmarks.first_trials [--operators C1,C6,D3] [--trials 64] [--seeds 1]

Each operator is tuned twice on one core of this machine, with the same seed; then the best program of either
search after half of its trials and after all of them is timed again, in turn. Printed are the ratios of
speeds, above 1 where the untuned program is the better beginning, and their geometric mean with its 95 %
interval over operators and seeds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.experiments.statistics import compare
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from benchmarks.timed_in_turn import timed_in_turn
from boards.board import load
from boards.description import Board
from boards.target import Target
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.explore.search import FIRST, SearchOptions
from toolkit.measure.builder import Builder
from toolkit.measure.session import Session, open_session
from toolkit.records import Records, TuningRecord
from toolkit.tuning.algorithm import TuningOptions
from toolkit.tuning.on_board import BoardOptions, open_job, record_key, tune_on_board
from toolkit.tuning.progress import Budget

OPERATORS: Final = tuple(name for name in WORKLOADS if name[0] in "CDT")
WAIT_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where both searches measure."""

    board: Board
    target: Target
    session: Session
    builder: Builder


def ratios(place: Place, name: str, trials: int, seed: int) -> list[float]:
    """Speed with the first beginning over that with the second one, after half the trials and after all."""
    operator = workload_operator(WORKLOADS[name])
    _, programs = open_job(name, operator, place.board, place.target)
    found: dict[str, list[Configuration]] = {}
    for first in FIRST:
        tuning = TuningOptions(search=SearchOptions(first=first), seed=seed)
        options = BoardOptions(target=place.target, tuning=tuning)
        with tempfile.TemporaryDirectory() as folder, Records(Path(folder) / "records.db") as records:
            tune_on_board(
                [(name, operator)], place.board, place.session, records, Budget(trials), options=options
            )
            recorded = records.for_key(record_key(programs.space, place.board))
        found[first] = [_fastest(programs.space, recorded[:count]) for count in (trials // 2, trials)]
    winners = [winner for pair in zip(*found.values(), strict=True) for winner in pair]
    seconds = timed_in_turn(programs, winners, place.board, place.session, place.builder)
    return [other / mine for mine, other in zip(seconds[::2], seconds[1::2], strict=True)]


def _fastest(space: ScheduleSpace, recorded: Sequence[TuningRecord]) -> Configuration:
    """The untuned configuration where nothing ran."""
    worked = [item for item in recorded if item.cost_s is not None]
    best = min(worked, key=lambda item: item.cost_s or 0.0, default=None)
    return space.default() if best is None else space.parse(best.configuration)


def lines(place: Place, names: Sequence[str], trials: int, seeds: int) -> Iterator[str]:
    """The table, a line as soon as it is known, and what follows from all of it."""
    yield f"{'operator':10}{'seed':>5}{f'{trials // 2} trials':>12}{f'{trials} trials':>12}"
    measured = []
    for seed in range(seeds):
        for name in names:
            measured.append(ratios(place, name, trials, seed))
            yield f"{name:10}{seed:5d}" + "".join(f"{ratio:12.3f}" for ratio in measured[-1])
    for count, column in zip((trials // 2, trials), zip(*measured, strict=True), strict=True):
        mean = compare(column, [1.0] * len(column))
        ratio = mean.ratio
        yield f"{count} trials: {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], {mean.verdict}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--operators", type=lambda text: text.split(","), default=list(OPERATORS))
    parser.add_argument("--trials", type=int, default=64, help="of each search (default: 64)")
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.operators if name not in WORKLOADS]:
        parser.error(f"unknown operators {', '.join(unknown)}: expected some of {', '.join(WORKLOADS)}")
    board = load("host")
    target = board.target()
    one_core = msgspec.structs.replace(target, cores=target.cores[:1])
    with (
        open_session(board, wait_s=WAIT_S, holder="benchmarks.first_trials") as session,
        Builder(one_core) as builder,
    ):
        place = Place(board, one_core, session, builder)
        for line in lines(place, asked.operators, asked.trials, asked.seeds):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
