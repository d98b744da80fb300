"""Recorded spaces: every configuration of a reduced space of an operator, measured once on one core.

    python -m benchmarks.replay record C6 C9 M1024     measure here; goes on where it was stopped
    python -m benchmarks.replay show C6                what a table holds and where it comes from
    python -m benchmarks.replay search C6 --tuner genetic --trials 200 --seed 1     one search, trial by trial

`record` writes benchmarks/replay/NAME.tfbr; C6, C9 and M1024 take a few minutes each, tiny some seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness.command import Asked, finished, program, subcommands
from benchmarks.harness.place import board_with
from benchmarks.replay.operators import TABLES
from benchmarks.replay.record import record
from benchmarks.replay.recorded import FOLDER, Replay, course, open_replay
from toolkit.cost_model.names import COST_MODELS
from toolkit.explore.names import TUNERS
from toolkit.explore.search import SearchOptions, annealing_options, make_proposer, search_features
from toolkit.measure.measurement import GIVEN_UP_S, IDENTICAL_CODE
from toolkit.measure.replay import SUFFIX

WORK = Path("build/replay")


def _record(asked: Asked) -> None:
    for name in asked.names:
        table = record(name, TABLES[name], *board_with(1), asked.work, asked.seed)
        output = asked.output or FOLDER / f"{name}{SUFFIX}"
        table.write(output)
        print(f"{output}: {len(table)} configurations, {output.stat().st_size / 1024:.0f} KiB")


def described(replay: Replay) -> str:
    """A table for people."""
    table, origin = replay.table, replay.table.provenance
    costs_s = table.costs_s[np.isfinite(table.costs_s)]
    gflops = table.flops / costs_s / 1e9
    same, beaten = (
        sum(mark in facts for facts in table.marks.values()) for mark in (IDENTICAL_CODE, GIVEN_UP_S)
    )
    shares = ", ".join(f"{np.quantile(gflops, share):.1f}" for share in (0.0, 0.25, 0.5, 0.75, 0.95, 1.0))
    lines = [
        f"{table.name}: {len(table)} configurations, {len(table.errors)} failures, {same} with the machine "
        f"code of another, {beaten} given up early",
        f"GFLOP/s at 0, 25, 50, 75, 95, 100 %: {shares}",
        f"recorded {origin.date} in {origin.wall_s:.0f} s on {origin.machine}, version {origin.tool_version}",
        f"rule: {origin.rule}",
        f"again: {origin.command}",
    ]
    for knob in table.knobs:
        shown = " ".join("x".join(map(str, choice)) for choice in knob.choices)
        lines.append(f"  {knob.name}: {shown}")
    return "\n".join(lines)


def _search(asked: Asked) -> None:
    """A JSON line for each trial: the same table and seed print the same bytes."""
    replay = open_replay(asked.name, asked.table)
    options = SearchOptions(asked.tuner, asked.cost_model, annealing_options(asked.preset, alpha=asked.alpha))
    rng = np.random.default_rng(asked.seed)
    proposer = make_proposer(replay.space, search_features(options, replay.programs), rng, options)
    rows, costs_s = course(replay, proposer, asked.trials, batch=asked.batch)
    best_s = np.inf
    for trial, (row, cost_s) in enumerate(zip(rows, costs_s.tolist(), strict=True)):
        best_s = np.fmin(best_s, cost_s)
        described_row = replay.space.describe(replay.space.configuration(row))
        gflops = None if np.isnan(cost_s) else round(replay.table.flops / cost_s / 1e9, 3)
        best = round(replay.best_s / best_s, 4) if np.isfinite(best_s) else 0.0
        print(json.dumps({"trial": trial, "gflops": gflops, "of_best": best, "configuration": described_row}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("replay", __doc__)
    add = subcommands(parser)
    recording = add("record", _record, "measure every configuration of a reduced space")
    recording.add_argument("names", nargs="+", choices=TABLES)
    recording.add_argument("--work", type=Path, default=WORK, help="records of unfinished tables")
    recording.add_argument("--output", type=Path, help="default: benchmarks/replay/NAME.tfbr")
    shown = add(
        "show", lambda asked: print(described(open_replay(asked.name, asked.table))), "what a table holds"
    )
    searched = add("search", _search, "run one search on a table")
    for command in (shown, searched):
        command.add_argument("name", choices=TABLES)
        command.add_argument("--table", type=Path, help="default: benchmarks/replay/NAME.tfbr")
    searched.add_argument("--tuner", choices=TUNERS, default="annealing")
    searched.add_argument("--cost-model", choices=COST_MODELS, default=SearchOptions().cost_model)
    searched.add_argument("--preset", default="wide")
    searched.add_argument("--alpha", type=float)
    searched.add_argument("--trials", type=int, default=200)
    searched.add_argument("--batch", type=int, default=64)
    for command in (recording, searched):
        command.add_argument("--seed", type=int, default=0)
    return finished(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
