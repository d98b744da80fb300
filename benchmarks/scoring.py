"""Candidates scored per second on C6.

Annealing moves whole populations: neighbours, features of all of them at once, one prediction, bookkeeping;
all of that is in its figure. The comparison binds and featurizes candidate by candidate with the plain
extractor (the specification of the same features) and predicts once. Both run in turn, in one process.

    python -m benchmarks.scoring [--runs 9] [--chains 4096] [--steps 24] [--plain 48]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.c6 import c6, spread
from boards.board import load
from cross.loopnest.bind import bind
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.explore.annealing import AnnealingOptions, Best, anneal
from toolkit.explore.space import Batch
from toolkit.features import ContextFeatures, plain_features

TRAINED_ON = 256  # configurations; their times are made up, prediction costs the same


class Scoring:
    """The space of C6 on this machine with a fitted model."""

    def __init__(self, seed: int) -> None:
        self.space = cpu_space(c6(), load("host").target())
        self.programs = Programs(self.space)
        self.features = ContextFeatures(self.programs)
        self.model = GradientBoostedTrees(seed=seed)
        self.rng = np.random.default_rng(seed)
        known = self.features(self.space.sample(self.rng, TRAINED_ON))
        weights = self.rng.normal(size=known.shape[1])
        self.model.fit(known, np.exp(0.05 * known.astype(np.float64) @ weights))

    def annealed(self, options: AnnealingOptions) -> float:
        """Candidates per second of one annealing run from a fresh population."""
        chains = self.space.sample(self.rng, options.chains)
        best = Best(self.space, 128, np.zeros(0, np.uint64))
        scored = 0

        def score(batch: Batch) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
            nonlocal scored
            scored += len(batch)
            return self.model.predict(self.features(batch))

        start_s = time.perf_counter()
        anneal(self.space, score, chains, best, options=options, rng=self.rng)
        return scored / (time.perf_counter() - start_s)

    def one_by_one(self, count: int) -> float:
        """Candidates per second when each is bound and featurized by itself; checks the features."""
        batch = self.space.mutate(self.rng, self.space.sample(self.rng, count))
        start_s = time.perf_counter()
        rows = np.zeros((count, self.features.width), np.float32)
        for place, row in enumerate(batch):
            configuration = self.space.configuration(row)
            parametric = self.programs.parametric(self.programs.structure(configuration))
            values = plain_features(bind(parametric, self.space.fields(configuration), simplify=False))
            rows[place, : len(values)] = values
        self.model.predict(rows)
        rate = count / (time.perf_counter() - start_s)
        np.testing.assert_allclose(rows, self.features(batch), rtol=1e-5, atol=1e-5)
        return rate


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--chains", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--plain", type=int, default=48, help="candidates scored one by one in each run")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    options = AnnealingOptions(chains=asked.chains, steps=asked.steps, patience=asked.steps)
    scoring = Scoring(asked.seed)
    print(
        f"C6, {scoring.space.size:,} configurations, {scoring.features.width} features, "
        f"{asked.chains} chains x {asked.steps} steps, {os.cpu_count()} cores, "
        f"load before {os.getloadavg()[0]:.1f}"
    )
    pairs = [(scoring.annealed(options), scoring.one_by_one(asked.plain)) for _ in range(asked.runs)]
    print(spread("annealing, whole populations", [fast for fast, _ in pairs], "candidates/s"))
    print(spread("plain extractor, one candidate at a time", [slow for _, slow in pairs], "candidates/s"))
    print(spread("annealing against plain", [fast / slow for fast, slow in pairs], "times"))


if __name__ == "__main__":
    main()
