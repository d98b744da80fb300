"""Where trials go: to the operators where the model's latency falls fastest, against equal shares.

    python -m benchmarks.allocation [--trials 96,192,384,768] [--seeds 10]

Each seed is a model of the recorded operators (benchmarks.replay), which it computes 1 to 64 times each. The
product's own tuner searches the recorded spaces with both rules and as many trials in all; times are looked
up and the clock counts the seconds that they took, so that the same command prints the same figures. Printed
for each number of trials: both latencies over that of the fastest programs there are, and their ratio with
its 95 % interval over the seeds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.command import Asked, finished, numbers, program
from benchmarks.harness.statistics import compare
from benchmarks.replay import open_replay
from benchmarks.replay.recorded import Replay
from toolkit.explore.space import Batch
from toolkit.features.choose import make_features
from toolkit.measure.measurement import Measurement
from toolkit.records import RecordKey, Records
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget
from toolkit.tuning.task import Task

OPERATORS: Final = ("C6", "C9", "M1024", "tiny")
COMPILE_S: Final = 0.05  # of a trial, beside the time of the kernel
MOST_OFTEN: Final = 6  # a model computes an operator up to 2 to the power of this times


class Seconds:
    """A clock that goes on by what trials take."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class TimedRunner:
    """Looks measurements up, and lets the clock go on as if they were made."""

    replay: Replay
    clock: Seconds

    def prepare(self, batch: Batch) -> Iterator[Measurement]:
        """See Runner.prepare."""
        for measurement in self.replay.runner.prepare(batch):
            self.clock.now_s += COMPILE_S + measurement.device_s
            yield measurement


def weights_of(seed: int) -> dict[str, float]:
    """How often the model of a seed computes each operator."""
    rng = np.random.default_rng(seed)
    return {name: float(round(2.0 ** rng.uniform(0.0, MOST_OFTEN))) for name in OPERATORS}


def latency_s(
    replays: Mapping[str, Replay], weights: Mapping[str, float], budget: Budget, seed: int
) -> float:
    """Seconds of the model after tuning."""
    clock = Seconds()
    jobs = [(_job(replay, weights[name]), TimedRunner(replay, clock)) for name, replay in replays.items()]
    with (
        tempfile.TemporaryDirectory(prefix="tfb-bench-") as folder,
        Records(Path(folder) / "r.db") as records,
    ):
        results = tune_all(jobs, records, budget, options=TuningOptions(seed=seed), clock=clock)
    best_s = [result.best.cost_s if result.best else None for result in results]
    return sum(weights[name] * (cost_s or np.nan) for name, cost_s in zip(replays, best_s, strict=True))


def _job(replay: Replay, weight: float) -> Task:
    table, features = replay.table, make_features("context", replay.programs)
    return Task(
        name=table.name,
        flops=table.flops,
        space=replay.space,
        features=features,
        key=RecordKey(table.operator_key, f"replay:{table.target.key}", table.space_key, "replay"),
        weight=weight,
        kind=replay.operator.name,
    )


def line(replays: Mapping[str, Replay], trials: int, seeds: int) -> str:
    """What both rules reach with so many trials in all."""
    allocated, equal = [], []
    for seed in range(seeds):
        weights = weights_of(seed)
        least_s = sum(weights[name] * replay.best_s for name, replay in replays.items())
        allocated.append(least_s / latency_s(replays, weights, Budget(total=trials), seed))
        equal.append(least_s / latency_s(replays, weights, Budget(trials // len(replays)), seed))
    found = compare(allocated, equal)
    ratio = found.ratio
    return (
        f"{trials:6d}{np.median(allocated):12.3f}{np.median(equal):12.3f}"
        f"{ratio.estimate:12.3f}  [{ratio.low:.3f}, {ratio.high:.3f}]  {found.verdict}"
    )


def run(asked: Asked) -> None:
    """Print the table, a line as soon as it is known."""
    replays = {name: open_replay(name) for name in OPERATORS}
    print(f"models of {', '.join(OPERATORS)}; speed as a part of the fastest there is, {asked.seeds} seeds")
    print(f"{'trials':>6}{'allocated':>12}{'equal':>12}{'ratio':>12}  95 % interval")
    for trials in asked.trials:
        print(line(replays, trials, asked.seeds), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("allocation", __doc__)
    parser.add_argument("--trials", type=numbers, default=[96, 192, 384, 768], help="in all")
    parser.add_argument("--seeds", type=int, default=10)
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
