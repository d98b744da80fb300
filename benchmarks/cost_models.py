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

import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.command import Asked, finished, names, program, subcommands
from benchmarks.harness.place import HOST, open_place
from benchmarks.harness.statistics import rank_correlation, top_recall
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import WORKLOADS
from benchmarks.replay.recorded import open_replay
from boards.board import load
from toolkit.cost_model.base import throughput
from toolkit.cost_model.choose import make_cost_model
from toolkit.cost_model.names import TREE_MODELS
from toolkit.explore.search import SearchOptions
from toolkit.features.choose import make_features
from toolkit.features.tree import CHANNELS
from toolkit.model_job.training_data import training_data
from toolkit.records import Records
from toolkit.tuning.operator_search import TuningOptions
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
    found = []
    for group in range(len(data.names)):
        rows = np.random.default_rng([seed, group]).permutation(data.rows(group))
        if len(rows) < LEAST_ROWS:
            continue
        known = min(SAME_ROWS, len(rows) // 2)
        table = data.features[_kind(name, "context")]
        model = make_cost_model(name, seed, channels=len(CHANNELS))
        model.fit(table[rows[:known]], data.costs_s[rows[:known]])
        found.append(judged(model.predict(table[rows[known:]]), data.costs_s[rows[known:]]))
    return found


def new_operator(name: str, data: Data, seed: int, most: int) -> list[tuple[float, float]]:
    """Correlation and recall on operators that the model never saw; at most so many, those with most rows."""
    sizes = [len(data.rows(group)) for group in range(len(data.names))]
    found = []
    for group in np.argsort(sizes)[::-1][:most]:
        rows, others = data.rows(int(group)), data.groups != group
        if len(rows) < LEAST_ROWS or not others.any():
            continue
        table = data.features[_kind(name, "relation")]
        model = make_cost_model(name, seed, channels=len(CHANNELS), patient=True)
        model.fit(table[others], data.costs_s[others], data.groups[others])
        found.append(judged(model.predict(table[rows]), data.costs_s[rows]))
    return found


def _kind(name: str, otherwise: str) -> str:
    return "tree" if name in TREE_MODELS else otherwise


def judged(scores: Table, costs_s: Numbers) -> tuple[float, float]:
    """Rank correlation of scores and speed; share of the fastest 64, or eighth, among as many best scores."""
    count = max(1, min(FASTEST, len(scores) // 8))
    return rank_correlation(scores, costs_s), top_recall(scores, costs_s, count)


def _shown(judged: Iterable[tuple[float, float]]) -> str:
    correlations, recalls = zip(*judged, strict=True) if judged else ((), ())
    if not correlations:
        return f"{'-':>24}"
    middle, share = statistics.median(correlations), statistics.median(recalls)
    return f"{middle:6.2f} ({min(correlations):5.2f}) {share:8.0%}"


def collect(asked: Asked) -> None:
    """Measure random configurations of OPERATORS on this machine."""
    tuning = TuningOptions(search=SearchOptions(tuner="random"), seed=asked.seed)
    named = [(name, operator(WORKLOADS[name])) for name in OPERATORS]
    board = load(HOST)
    with Records(asked.records) as records, open_place(board, board.target(), "cost_models") as place:
        results = place.tuned(named, records, Budget(asked.trials), tuning)
    print(f"{asked.records}: {sum(result.trials for result in results)} records of {len(named)} operators")


def compare(asked: Asked) -> None:
    """Print the table. Raises ValueError where nothing is given to compare on."""
    data = [of_records(asked.records)] if asked.records else []
    data += [of_table(name) for name in asked.table]
    if not data:
        raise ValueError("compare needs --records FILE or --table NAME")
    for item in data:
        rates = [throughput(item.costs_s[item.rows(group)]) for group in range(len(item.names))]
        spread = statistics.median(float(np.median(rate)) for rate in rates if len(rate))
        found = ", ".join(f"{count} {name}" for name, count in Counter(item.names).items())
        print(
            f"{found}: {len(item.costs_s)} records, {np.isnan(item.costs_s).sum()} failed; "
            f"the median configuration runs at {spread:.0%} of the best"
        )
    heads = ("refit", "scored/s", "same: correlation", "top", "new: correlation", "top")
    print(f"{'':20}{heads[0]:>8}{heads[1]:>11}{heads[2]:>22}{heads[3]:>6}{heads[4]:>22}{heads[5]:>6}")
    for name in asked.models:
        fit_s, rate = speed(name, data[0], asked.seed)
        same = [pair for item in data for pair in same_operator(name, item, asked.seed)]
        new = [pair for item in data for pair in new_operator(name, item, asked.seed, asked.operators)]
        print(f"{name:20}{fit_s:6.2f} s{rate:11,.0f}    {_shown(same)}    {_shown(new)}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("cost_models", __doc__)
    add = subcommands(parser)
    collecting = add("collect", collect, "measure random configurations on this machine")
    collecting.add_argument("--records", type=Path, required=True, help="the file that they are kept in")
    collecting.add_argument("--trials", type=int, default=96, help="of each operator (default: 96)")
    comparing = add("compare", compare, "how fast models learn and score, and how well they rank")
    comparing.add_argument("--records", type=Path, help="a file whose operators are what is compared on")
    comparing.add_argument(
        "--table", action="append", default=[], help="a recorded space (benchmarks.replay)"
    )
    comparing.add_argument("--models", type=names, default=list(MODELS), help="separated by commas")
    comparing.add_argument("--operators", type=int, default=6, help="left out in turn for `new` (default: 6)")
    for command in (collecting, comparing):
        command.add_argument("--seed", type=int, default=0)
    return finished(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
