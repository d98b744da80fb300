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

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiments.collect import LEARNED, OPERATORS, RANDOM, Progress
from benchmarks.experiments.statistics import best_so_far, compare, trials_to_reach
from benchmarks.kernels.columns import aligned
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from boards.board import load
from boards.description import Board
from boards.errors import BoardError
from boards.target import Target
from cross.loopnest.program import Programs
from cross.schedule.space import Configuration
from toolkit.errors import ToolkitError
from toolkit.explore.search import SearchOptions
from toolkit.measure.builder import Builder
from toolkit.measure.fit import fitted
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import Session, open_session
from toolkit.records import Records, TuningRecord
from toolkit.tuning.algorithm import TuningOptions
from toolkit.tuning.on_board import BoardOptions, open_job, record_key, tune_on_board
from toolkit.tuning.progress import Budget

METHODS: Final = {LEARNED: SearchOptions(), RANDOM: SearchOptions(tuner="random")}
ROUNDS: Final = 4  # of timing the winners again
WAIT_S: Final = 1800.0  # for whoever measures on this board now
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared, and where the measurements are kept."""

    board: Board
    target: Target
    trials: int
    timeout_s: float
    work: Path

    @property
    def timing(self) -> RunnerOptions:
        """How candidates are measured."""
        return replace(RunnerOptions.of(self.board.measure), timeout_s=self.timeout_s)

    def records(self, operator: str, method: str, seed: int) -> Path:
        """The records file of a search."""
        return self.work / f"{self.board.name}-{self.target.name}-{operator}-{method}-{seed}.db"


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


# ------------------------------------------------------------------------------------------- measuring


def searched(session: Session, setting: Setting, name: str, seed: int) -> None:
    """Spend what is left of the trials of both searches."""
    operator = workload_operator(WORKLOADS[name])
    for method, search in METHODS.items():
        tuning = TuningOptions(search=search, seed=seed)
        options = BoardOptions(target=setting.target, timing=setting.timing, tuning=tuning)
        with Records(setting.records(name, method, seed)) as records:
            if len(_recorded(records, setting, name)) < setting.trials:
                tune_on_board(
                    [(name, operator)],
                    setting.board,
                    session,
                    records,
                    Budget(setting.trials),
                    options=options,
                    on_event=Progress(f"{name}, {method}, seed {seed}"),
                )


def found_of(session: Session, setting: Setting, name: str, seed: int) -> Found:
    """What is recorded of an operator and seed, the best of each search timed again."""
    operator = workload_operator(WORKLOADS[name])
    _, programs = open_job(name, operator, setting.board, setting.target)
    space = programs.space
    recorded: dict[str, list[TuningRecord]] = {}
    for method in METHODS:
        with Records(setting.records(name, method, seed)) as records:
            recorded[method] = _recorded(records, setting, name)[: setting.trials]
    fastest = {method: _fastest(items) for method, items in recorded.items()}
    contenders = {method: space.parse(item.configuration) for method, item in fastest.items() if item}
    again_s = timed_again(session, setting, programs, [*contenders.values(), space.default()])
    return Found(
        operator=name,
        seed=seed,
        flops=operator.flops,
        untuned_s=again_s[space.default()],
        best_s={method: again_s.get(contenders.get(method, _NONE), np.nan) for method in METHODS},
        curves_s={method: [_cost_s(item) for item in items] for method, items in recorded.items()},
        failures=Counter(item.error_kind for items in recorded.values() for item in items if item.error_kind),
    )


def timed_again(
    session: Session, setting: Setting, programs: Programs, configurations: Sequence[Configuration]
) -> dict[Configuration, float]:
    """Fastest seconds of each configuration over ROUNDS, in turn; NaN where it failed throughout."""
    options = replace(setting.timing, beaten=0.0)
    best_s = dict.fromkeys(configurations, np.nan)
    with Builder(setting.target, workers=1) as builder:
        runner = LiveRunner(programs, builder, session, options)
        for number in range(ROUNDS):
            order = list(best_s)[:: -1 if number % 2 else 1]
            runner = runner.afresh(options)
            for item, measured in zip(order, runner.prepare(programs.space.batch(order)), strict=True):
                best_s[item] = float(np.fmin(best_s[item], measured.cost_s))
    return best_s


_NONE: Final = Configuration(())


def _recorded(records: Records, setting: Setting, name: str) -> list[TuningRecord]:
    _, programs = open_job(name, workload_operator(WORKLOADS[name]), setting.board, setting.target)
    return records.for_key(record_key(programs.space, setting.board))


def _cost_s(record: TuningRecord) -> float:
    return np.nan if record.cost_s is None else record.cost_s


def _fastest(records: Sequence[TuningRecord]) -> TuningRecord | None:
    worked = [item for item in records if item.cost_s is not None]
    return min(worked, key=_cost_s, default=None)


# ------------------------------------------------------------------------------------------- reporting

HEAD: Final = (
    "operator", "seed", "untuned", "random", "learned", "learned/random", "random's best after", "failed",
)  # fmt: skip


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
    best = {method: [item.gflops(item.best_s[method]) for item in worked] for method in METHODS}
    found = compare(best[LEARNED], best[RANDOM])
    ratio = found.ratio
    yield (
        f"learned/random after {trials} trials: {ratio.estimate:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], "
        f"geometric mean of {found.pairs} pairs: {found.verdict}"
    )
    for part in (trials // 4, trials // 2, trials):
        speeds = {
            method: [item.flops / best_so_far(item.curves_s[method], trials)[part - 1] for item in worked]
            for method in METHODS
        }
        if part and all(all(values) for values in speeds.values()):
            there = compare(speeds[LEARNED], speeds[RANDOM]).ratio
            yield f"  as measured during the search, after {part}: {there.estimate:.3f}"


# --------------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing and print the comparison; returns the exit code."""
    asked = _parser().parse_args(arguments)
    unknown = [name for name in asked.operators if name not in WORKLOADS]
    if unknown:
        print(
            f"unknown operators {', '.join(unknown)}: expected some of {', '.join(WORKLOADS)}",
            file=sys.stderr,
        )
        return 2
    asked.work.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        board = _board(asked.board, asked.device_dir)
        setting = Setting(board, board.target(asked.target), asked.trials, asked.timeout, asked.work)
        with open_session(board, wait_s=WAIT_S, holder="benchmarks.gpu_search") as session:
            setting = replace(setting, target=fitted(session, setting.target))
            for seed in range(asked.seeds):
                for name in asked.operators:
                    searched(session, setting, name, seed)
                    results.append(found_of(session, setting, name, seed))
    except (ToolkitError, BoardError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: what is measured is kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    print(f"{board.title}, target {setting.target.key}; GFLOP/s")
    for line in aligned([HEAD, *(row(item, asked.trials) for item in results)]):
        print(line)
    for line in conclusion(results, asked.trials):
        print(line)
    return 0


def _board(name: str, device_dir: Path | None) -> Board:
    board = load(name)
    if device_dir is None:
        return board
    link = msgspec.structs.replace(board.link, device_dir=str(device_dir.absolute()))
    changed: Board = msgspec.structs.replace(board, link=link)
    return changed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--board", default="pocl")
    parser.add_argument("--target", help="one of the board's; default: the one with the highest estimate")
    parser.add_argument("--operators", type=lambda text: text.split(","), default=list(OPERATORS))
    parser.add_argument("--trials", type=int, default=200, help="of each search, operator and seed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--timeout", type=float, default=8.0, help="seconds of a measurement, compiler included"
    )
    parser.add_argument("--device-dir", type=Path, help="where the runtime keeps files; default: the board's")
    parser.add_argument("--work", type=Path, default=Path("build/gpu_search"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
