"""Candidates scored per second on C6.

Annealing moves whole populations: neighbours, features of all of them at once, one prediction, bookkeeping;
all of that is in its figure, with the share of each part. The comparison asks for the features of one
candidate after the other and predicts once. Every kind of features takes its turn in each run, in one
process.

    python -m benchmarks.scoring [--runs 9] [--chains 4096] [--steps 24] [--single 48] [--features KIND ...]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.command import Asked, finished, program
from benchmarks.harness.text import spread
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import WORKLOADS
from boards.board import load
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.explore.annealing import AnnealingOptions, Best, anneal
from toolkit.explore.space import Batch
from toolkit.features.choose import make_features
from toolkit.features.names import KINDS

PARTS = ("features", "prediction", "annealing")
TRAINED_ON = 256  # configurations; their times are made up, prediction costs the same


@dataclass(frozen=True, slots=True)
class Rate:
    """Candidates per second of one annealing run, and the shares of its time that its parts take."""

    per_s: float
    features: float
    prediction: float

    @property
    def annealing(self) -> float:
        """The rest: neighbours, acceptance, keeping the best."""
        return 1.0 - self.features - self.prediction


class Scoring:
    """The space of C6 on this machine, one kind of features and a fitted model."""

    def __init__(self, programs: Programs, kind: str, seed: int) -> None:
        self.programs, self.space = programs, programs.space
        self.features = make_features(kind, programs)
        self.model = GradientBoostedTrees(seed=seed)
        self.rng = np.random.default_rng(seed)
        known = self.features(self.space.sample(self.rng, TRAINED_ON))
        weights = self.rng.normal(size=known.shape[1])
        self.model.fit(known, np.exp(0.05 * known.astype(np.float64) @ weights))

    def annealed(self, options: AnnealingOptions) -> Rate:
        """One annealing run from a fresh population."""
        chains = self.space.sample(self.rng, options.chains)
        best = Best(self.space, 128, np.zeros(0, np.uint64))
        scored, features_s, prediction_s = 0, 0.0, 0.0

        def score(batch: Batch) -> NDArray[np.float32]:
            nonlocal scored, features_s, prediction_s
            before_s = time.perf_counter()
            table = self.features(batch)
            between_s = time.perf_counter()
            scores = self.model.predict(table)
            features_s += between_s - before_s
            prediction_s += time.perf_counter() - between_s
            scored += len(batch)
            return scores

        start_s = time.perf_counter()
        anneal(self.space, score, chains, best, options=options, rng=self.rng)
        wall_s = time.perf_counter() - start_s
        return Rate(scored / wall_s, features_s / wall_s, prediction_s / wall_s)

    def one_by_one(self, count: int) -> float:
        """Candidates per second when the features of each are computed by themselves."""
        batch = self.space.mutate(self.rng, self.space.sample(self.rng, count))
        start_s = time.perf_counter()
        self.model.predict(np.concatenate([self.features(batch[[row]]) for row in range(len(batch))]))
        return len(batch) / (time.perf_counter() - start_s)


def run(asked: Asked) -> None:
    """Print the rates, their parts, and the ratio to one candidate at a time."""
    options = AnnealingOptions(chains=asked.chains, steps=asked.steps, patience=asked.steps)
    programs = Programs(cpu_space(operator(WORKLOADS["C6"]), load("host").target()))
    print(
        f"C6, {programs.space.size:,} configurations, {asked.chains} chains x {asked.steps} steps, "
        f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}"
    )
    kinds = {kind: Scoring(programs, kind, asked.seed) for kind in asked.features}
    rates: dict[str, list[Rate]] = {kind: [] for kind in kinds}
    single: list[float] = []
    for _ in range(asked.runs):
        for kind, scoring in kinds.items():
            rates[kind].append(scoring.annealed(options))
        if "context" in kinds:
            single.append(kinds["context"].one_by_one(asked.single))
    for kind, found in rates.items():
        print(
            spread(f"{kind}, {kinds[kind].features.width} columns", [r.per_s for r in found], "candidates/s")
        )
        shares = {part: statistics.median(getattr(rate, part) for rate in found) for part in PARTS}
        print("    " + ", ".join(f"{part} {share:.0%}" for part, share in shares.items()))
    if single:
        print(spread("context, one candidate at a time", single, "candidates/s"))
        ratios = [fast.per_s / slow for fast, slow in zip(rates["context"], single, strict=True)]
        print(spread("annealing against one at a time", ratios, "times"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("scoring", __doc__)
    for name, default, text in (
        ("runs", 9, "of each kind of features"),
        ("chains", 4096, "of the annealing"),
        ("steps", 24, "of each chain"),
        ("single", 48, "candidates scored one by one in each run"),
        ("seed", 0, "of the search"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (default: {default})")
    parser.add_argument("--features", nargs="+", choices=KINDS, default=list(KINDS))
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
