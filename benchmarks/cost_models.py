"""Cost models beside each other: how fast they learn and score, and how well they rank what they never saw.

    python -m benchmarks.cost_models collect --records build/models.db     measure at random; takes minutes
    python -m benchmarks.cost_models compare --records build/models.db [--table C6] [--models gbt,treegru]

`compare` prints a line for each model:
    refit       seconds to fit 2,000 rows, and candidates scored a second, features excluded
    same        fitted on half of the configurations of an operator (at most 256), judged on the others
    new         fitted on all operators but one, judged on that one: what a prior is worth
Ranking is judged by Spearman's correlation, and by how many of the fastest 64 (or eighth) are among as many
that the model rates highest. Medians over the operators, with the lowest in brackets.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import WORKLOADS
from benchmarks.replay.recorded import open_replay
from boards.board import load
from toolkit.cost_model.base import throughput
from toolkit.cost_model.choose import TREE_MODELS, make_cost_model
from toolkit.explore.search import SearchOptions
from toolkit.features import make_features
from toolkit.features.tree import CHANNELS
from toolkit.measure.session import open_session
from toolkit.model_job.training_data import training_data
from toolkit.records import Records
from toolkit.tuning.algorithm import TuningOptions
from toolkit.tuning.on_board import BoardOptions, tune_on_board
from toolkit.tuning.progress import Budget

OPERATORS = ("C2", "C4", "C5", "C6", "C8", "C9", "C12", "D3", "D6", "T2")
MODELS = ("gbt", "gbt-regression", "treegru", "treegru-regression", "vanilla-treegru")
KINDS = ("context", "relation", "tree")
FIT_ROWS, SCORE_ROWS, TREE_SCORE_ROWS = 2000, 65_536, 8192
SAME_ROWS, FASTEST, LEAST_ROWS = 256, 64, 32

Table = NDArray[np.float32]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """Measurements of several operators: features by kind [N, F], seconds [N], operator [N]."""

    features: dict[str, Table]
    costs_s: Numbers
    groups: NDArray[np.int64]
    names: tuple[str, ...]

    def rows(self, group: int) -> NDArray[np.int64]:
        """Rows of an operator that ran."""
        return np.flatnonzero((self.groups == group) & np.isfinite(self.costs_s))


def of_records(path: Path) -> Data:
    """Every operator in a records file."""
    with Records(path, read_only=True) as store:
        found = {kind: training_data(store, kind) for kind in KINDS}
    data = found["context"]
    features = {kind: item.features for kind, item in found.items()}
    return Data(features, data.costs_s, data.groups, tuple(item.name for item in data.operators))


def of_table(name: str) -> Data:
    """A recorded space: one operator, every configuration."""
    replay = open_replay(name)
    batch = replay.table.batch
    features = {kind: make_features(kind, replay.programs)(batch) for kind in KINDS}
    return Data(features, replay.table.costs_s, np.zeros(len(batch), np.int64), (name,))


def spearman(scores: Table, costs_s: Numbers) -> float:
    """Rank correlation of scores (higher is faster) with speed."""
    return float(np.corrcoef(_ranks(scores), _ranks(-costs_s))[0, 1])


def _ranks(values: Numbers | Table) -> Numbers:
    """Ranks from 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: Numbers = ends - (counts + 1) / 2.0
    return means[inverse]


def recall(scores: Table, costs_s: Numbers) -> float:
    """Share of the fastest FASTEST, or eighth, that are among as many with the highest scores."""
    count = max(1, min(FASTEST, len(scores) // 8))
    fastest, best = np.argsort(costs_s)[:count], np.argsort(-scores)[:count]
    return len(np.intersect1d(fastest, best)) / count


def speed(name: str, data: Data, seed: int) -> tuple[float, float]:
    """Seconds of a refit at FIT_ROWS rows, candidates scored a second; the second of two runs of each."""
    table = data.features[_kind(name, "context")]
    rng = np.random.default_rng(seed)
    known = rng.integers(0, len(table), FIT_ROWS)
    noise = np.exp(0.1 * rng.normal(size=FIT_ROWS))
    costs_s = np.where(np.isfinite(data.costs_s), data.costs_s, np.nanmax(data.costs_s))[known] * noise
    asked = table[rng.integers(0, len(table), TREE_SCORE_ROWS if name in TREE_MODELS else SCORE_ROWS)]
    model = make_cost_model(name, seed, channels=len(CHANNELS))
    fit_s = score_s = 0.0
    for _ in range(2):
        start_s = time.perf_counter()
        model.fit(table[known], costs_s)
        fit_s, start_s = time.perf_counter() - start_s, time.perf_counter()
        model.predict(asked)
        score_s = time.perf_counter() - start_s
    return fit_s, len(asked) / score_s


def same_operator(name: str, data: Data, seed: int) -> list[tuple[float, float]]:
    """Correlation and recall on unseen configurations of each operator."""
    judged = []
    for group in range(len(data.names)):
        rows = np.random.default_rng([seed, group]).permutation(data.rows(group))
        if len(rows) < LEAST_ROWS:
            continue
        known = min(SAME_ROWS, len(rows) // 2)
        table = data.features[_kind(name, "context")]
        model = make_cost_model(name, seed, channels=len(CHANNELS))
        model.fit(table[rows[:known]], data.costs_s[rows[:known]])
        judged.append(_judged(model.predict(table[rows[known:]]), data.costs_s[rows[known:]]))
    return judged


def new_operator(name: str, data: Data, seed: int, most: int) -> list[tuple[float, float]]:
    """Correlation and recall on operators that the model never saw; at most so many, those with most rows."""
    sizes = [len(data.rows(group)) for group in range(len(data.names))]
    judged = []
    for group in np.argsort(sizes)[::-1][:most]:
        rows, others = data.rows(int(group)), data.groups != group
        if len(rows) < LEAST_ROWS or not others.any():
            continue
        table = data.features[_kind(name, "relation")]
        model = make_cost_model(name, seed, channels=len(CHANNELS), patient=True)
        model.fit(table[others], data.costs_s[others], data.groups[others])
        judged.append(_judged(model.predict(table[rows]), data.costs_s[rows]))
    return judged


def _kind(name: str, otherwise: str) -> str:
    return "tree" if name in TREE_MODELS else otherwise


def _judged(scores: Table, costs_s: Numbers) -> tuple[float, float]:
    return spearman(scores, costs_s), recall(scores, costs_s)


def _shown(judged: Iterable[tuple[float, float]]) -> str:
    correlations, recalls = zip(*judged, strict=True) if judged else ((), ())
    if not correlations:
        return f"{'-':>24}"
    middle, share = statistics.median(correlations), statistics.median(recalls)
    return f"{middle:6.2f} ({min(correlations):5.2f}) {share:8.0%}"


def collect(path: Path, trials: int, seed: int) -> None:
    """Measure random configurations of OPERATORS on this machine."""
    board = load("host")
    tuning = TuningOptions(search=SearchOptions(tuner="random"), seed=seed)
    named = [(name, operator(WORKLOADS[name])) for name in OPERATORS]
    with Records(path) as records, open_session(board) as session:
        options = BoardOptions(tuning=tuning)
        results = tune_on_board(named, board, session, records, Budget(trials), options=options)
    print(f"{path}: {sum(result.trials for result in results)} records of {len(named)} operators")


def compare(data: Sequence[Data], models: Sequence[str], seed: int, most: int) -> None:
    """Print the table."""
    for item in data:
        rates = [throughput(item.costs_s[item.rows(group)]) for group in range(len(item.names))]
        spread = statistics.median(float(np.median(rate)) for rate in rates if len(rate))
        names = ", ".join(f"{count} {name}" for name, count in Counter(item.names).items())
        print(
            f"{names}: {len(item.costs_s)} records, {np.isnan(item.costs_s).sum()} failed; "
            f"the median configuration runs at {spread:.0%} of the best"
        )
    heads = ("refit", "scored/s", "same: correlation", "top", "new: correlation", "top")
    print(f"{'':20}{heads[0]:>8}{heads[1]:>11}{heads[2]:>22}{heads[3]:>6}{heads[4]:>22}{heads[5]:>6}")
    for name in models:
        fit_s, rate = speed(name, data[0], seed)
        same = [pair for item in data for pair in same_operator(name, item, seed)]
        new = [pair for item in data for pair in new_operator(name, item, seed, most)]
        print(f"{name:20}{fit_s:6.2f} s{rate:11,.0f}    {_shown(same)}    {_shown(new)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost_models",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("collect", "compare"))
    parser.add_argument("--records", type=Path, help="a records file; its operators are what is compared on")
    parser.add_argument("--table", action="append", default=[], help="a recorded space (benchmarks.replay)")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--trials", type=int, default=96, help="collect: random configurations an operator")
    parser.add_argument("--operators", type=int, default=6, help="compare: left out in turn for `new`")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    if asked.command == "collect":
        if asked.records is None:
            parser.error("collect needs --records FILE")
        collect(asked.records, asked.trials, asked.seed)
        return
    data = [of_records(asked.records)] if asked.records else []
    data += [of_table(name) for name in asked.table]
    if not data:
        parser.error("compare needs --records FILE or --table NAME")
    compare(data, asked.models.split(","), asked.seed, asked.operators)


if __name__ == "__main__":
    main()
