"""Learned against random search on a GPU board: what each finds of C1 to C12 in the same number of trials.

    python -m benchmarks.gpu_search                                    the board pocl, 200 trials, one seed
    python -m benchmarks.gpu_search --operators C3,C6 --trials 64 --seeds 3

Both searches measure the untuned schedule first. In the end the best of each are timed again, in turn and
each round in the other order, and these times are compared: a disturbance of the search's own measurements
does not decide. The ratio is that of speeds, a geometric mean over operators and seeds, with a bootstrap
interval at 95 %. Everything measured is kept in the folder --work: the same command goes on where it was
stopped, and with other operators, more trials or more seeds measures only what is missing.

On a board that is this machine, two processes may measure beside each other, on cores and in device folders
of their own; one more run then prints all:

    taskset -c 0 python -m benchmarks.gpu_search --operators C1,C2,C3,C4,C5,C6 --device-dir build/device0 &
    taskset -c 1 python -m benchmarks.gpu_search --operators C7,C8,C9,C10,C11,C12 --device-dir build/device1 &
    wait; python -m benchmarks.gpu_search

A candidate that is not compiled by the driver, run and checked within --timeout seconds is a failed trial.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace

from benchmarks.experiments.collect import LEARNED, OPERATORS, RANDOM
from benchmarks.harness.command import Asked, finished, program, some_of
from benchmarks.harness.place import Place, fastest, open_place, unbeaten
from benchmarks.harness.statistics import best_so_far, compare, trials_to_reach
from benchmarks.harness.text import aligned
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from boards.board import load
from toolkit.explore.search import SearchOptions
from toolkit.measure.live import RunnerOptions
from toolkit.records import Records
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget

METHODS: Final = {LEARNED: SearchOptions(), RANDOM: SearchOptions(tuner="random")}
ROUNDS: Final = 4  # of timing the winners again
HEAD: Final = (
    "operator", "seed", "untuned", "random", "learned", "learned/random", "random's best after", "failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What two searches of one seed found of an operator, in seconds; NaN where nothing ran."""

    operator: str
    seed: int
    flops: int
    untuned_s: float
    best_s: dict[str, float]
    curves_s: dict[str, list[float]]
    failures: Counter[str]

    @property
    def ratio(self) -> float:
        """How much faster the learned search's program is."""
        return self.best_s[RANDOM] / self.best_s[LEARNED]

    def gflops(self, seconds: float) -> float:
        """Throughput at so many seconds per call."""
        return self.flops / seconds / 1e9


def searched(place: Place, name: str, seed: int, asked: Asked) -> Found:
    """Spend what is left of the trials of both searches, and time the best of each again."""
    operator = workload_operator(WORKLOADS[name])
    timing = replace(RunnerOptions.of(place.board.measure), timeout_s=asked.timeout)
    contenders = {}
    curves_s, failures = {}, Counter[str]()
    for method, search in METHODS.items():
        file = f"{place.board.name}-{place.target.name}-{name}-{method}-{seed}.db"
        with Records(asked.work / file) as records:
            tuning = TuningOptions(search=search, seed=seed)
            place.tuned([(name, operator)], records, Budget(asked.trials), tuning, timing=timing)
            programs, recorded = place.recorded(name, operator, records)
        recorded = recorded[: asked.trials]
        contenders[method] = fastest(programs.space, recorded)
        curves_s[method] = [np.nan if item.cost_s is None else item.cost_s for item in recorded]
        failures.update(item.error_kind for item in recorded if item.error_kind)
    default = programs.space.default()
    order = [*(item for found in contenders.values() for item in found), default]
    again_s = dict(zip(order, place.in_turn(programs, order, unbeaten(timing), ROUNDS), strict=True))
    best_s = {method: again_s[found[0]] if found else np.nan for method, found in contenders.items()}
    return Found(name, seed, operator.flops, again_s[default], best_s, curves_s, failures)


def row(found: Found, trials: int) -> list[str]:
    """An operator's line of the table: GFLOP/s, the ratio, and when the learned search had caught up."""
    learned_s = best_so_far(found.curves_s[LEARNED], trials)
    reached = trials_to_reach(learned_s, np.nanmin([np.inf, *found.curves_s[RANDOM]]))
    speeds = (found.untuned_s, found.best_s[RANDOM], found.best_s[LEARNED])
    failed = ", ".join(f"{count} {kind}" for kind, count in sorted(found.failures.items()))
    return [
        found.operator,
        str(found.seed),
        *(f"{found.gflops(seconds):.1f}" for seconds in speeds),
        f"{found.ratio:.3f}",
        f"{reached} trials" if reached else "never",
        failed or "none",
    ]


def conclusion(results: Sequence[Found], trials: int) -> Iterator[str]:
    """The ratio of what the searches found, with its interval; and on the way there."""
    worked = [item for item in results if np.isfinite(item.ratio)]
    if len(worked) < len(results):
        missing = [f"{item.operator} (seed {item.seed})" for item in results if item not in worked]
        yield f"left out, because a search found no program that runs: {', '.join(missing)}"
    if not worked:
        return
    found = compare([item.ratio for item in worked], [1.0] * len(worked))
    yield (
        f"learned/random after {trials} trials: {found.ratio}, geometric mean of {found.pairs} pairs: "
        f"{found.verdict}"
    )
    for part in (trials // 4, trials // 2, trials):
        speeds = {
            method: [item.flops / best_so_far(item.curves_s[method], trials)[part - 1] for item in worked]
            for method in METHODS
        }
        if part and all(all(values) for values in speeds.values()):
            there = compare(speeds[LEARNED], speeds[RANDOM]).ratio
            yield f"  as measured during the search, after {part}: {there.estimate:.3f}"


def run(asked: Asked) -> None:
    """Measure what is missing and print the comparison."""
    asked.work.mkdir(parents=True, exist_ok=True)
    board = load(asked.board)
    if asked.device_dir is not None:
        link = replace(board.link, device_dir=str(asked.device_dir.absolute()))
        board = replace(board, link=link)
    with open_place(board, board.target(asked.target), "gpu_search") as place:
        seeds = range(asked.seeds)
        results = [searched(place, name, seed, asked) for seed in seeds for name in asked.operators]
    print(f"{board.title}, target {place.target.key}; GFLOP/s")
    table = aligned([HEAD, *(row(item, asked.trials) for item in results)])
    print("\n".join([*table, *conclusion(results, asked.trials)]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("gpu_search", __doc__)
    add = parser.add_argument
    add("--board", default="pocl")
    add("--target", help="one of the board's; default: the one with the highest estimate")
    add("--operators", type=some_of(WORKLOADS), default=list(OPERATORS))
    add("--trials", type=int, default=200, help="of each search, operator and seed")
    add("--seeds", type=int, default=1)
    add("--timeout", type=float, default=8.0, help="seconds of a measurement, compiler included")
    add("--device-dir", type=Path, help="where the runtime keeps files; default: the board's")
    add("--work", type=Path, default=Path("build/gpu_search"))
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
