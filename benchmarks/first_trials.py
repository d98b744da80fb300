"""Where a search begins: with the untuned program and those like it, or anywhere (`tune --first`).

    python -m benchmarks.first_trials [--operators C1,C6,D3] [--trials 64] [--seeds 1]

Each operator is tuned twice on one core of this machine, with the same seed; then the best program of either
search after half of its trials and after all of them is timed again, in turn. Printed are the ratios of
speeds, above 1 where the untuned program is the better beginning, and their geometric mean with its 95 %
interval over operators and seeds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness.command import Asked, finished, program, some_of
from benchmarks.harness.place import Place, board_with, fastest, open_place
from benchmarks.harness.statistics import compare
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from cross.schedule.space import Configuration
from toolkit.explore.names import FIRST
from toolkit.explore.search import SearchOptions
from toolkit.records import Records
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget

OPERATORS: Final = tuple(name for name in WORKLOADS if name[0] in "CDT")


def ratios(place: Place, name: str, trials: int, seed: int) -> list[float]:
    """Speed with the first beginning over that with the second one, after half the trials and after all."""
    operator = workload_operator(WORKLOADS[name])
    found: dict[str, list[Configuration]] = {}
    for first in FIRST:
        tuning = TuningOptions(search=SearchOptions(first=first), seed=seed)
        with tempfile.TemporaryDirectory() as folder, Records(Path(folder) / "records.db") as records:
            place.tuned([(name, operator)], records, Budget(trials), tuning)
            programs, recorded = place.recorded(name, operator, records)
        space = programs.space
        halves = (fastest(space, recorded[:count]) for count in (trials // 2, trials))
        found[first] = [best[0] if best else space.default() for best in halves]
    winners = [winner for pair in zip(*found.values(), strict=True) for winner in pair]
    seconds = place.in_turn(programs, winners)
    return [other / mine for mine, other in zip(seconds[::2], seconds[1::2], strict=True)]


def lines(place: Place, names: Sequence[str], trials: int, seeds: int) -> Iterator[str]:
    """The table, a line as soon as it is known, and what follows from all of it."""
    yield f"{'operator':10}{'seed':>5}{f'{trials // 2} trials':>12}{f'{trials} trials':>12}"
    measured = []
    for seed in range(seeds):
        for name in names:
            measured.append(ratios(place, name, trials, seed))
            yield f"{name:10}{seed:5d}" + "".join(f"{ratio:12.3f}" for ratio in measured[-1])
    for count, column in zip((trials // 2, trials), zip(*measured, strict=True), strict=True):
        yield f"{count} trials: {compare(column, [1.0] * len(column))}"


def run(asked: Asked) -> None:
    """Print the table."""
    with open_place(*board_with(1), "first_trials") as place:
        for line in lines(place, asked.operators, asked.trials, asked.seeds):
            print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("first_trials", __doc__)
    parser.add_argument("--operators", type=some_of(WORKLOADS), default=list(OPERATORS))
    parser.add_argument("--trials", type=int, default=64, help="of each search (default: 64)")
    parser.add_argument("--seeds", type=int, default=1)
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
