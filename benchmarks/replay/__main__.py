"""Recorded spaces: every configuration of a reduced space of an operator, measured once on one core.

    python -m benchmarks.replay record C6 C9 M1024     measure here; goes on where it was stopped
    python -m benchmarks.replay show C6                what a table holds and where it comes from
    python -m benchmarks.replay search C6 --tuner genetic --trials 200 --seed 1     one search, trial by trial

`record` writes benchmarks/replay/NAME.tfbr; C6, C9 and M1024 take a few minutes each, tiny some seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.kernels.host import board_with
from benchmarks.replay.operators import TABLES
from benchmarks.replay.record import Place, record
from benchmarks.replay.recorded import FOLDER, Replay, course, open_replay
from boards.errors import BoardError
from toolkit.cost_model.choose import COST_MODELS
from toolkit.errors import ToolkitError
from toolkit.explore.search import TUNERS, SearchOptions, annealing_options, make_proposer, search_features
from toolkit.measure.measurement import GIVEN_UP_S, IDENTICAL_CODE
from toolkit.measure.replay import SUFFIX

WORK = Path("build/replay")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        for name in asked.names if asked.command == "record" else [asked.name]:
            if asked.command == "record":
                _record(name, asked.work, asked.output or FOLDER / f"{name}{SUFFIX}", asked.seed)
            elif asked.command == "show":
                print(described(open_replay(name, asked.table)))
            else:
                _search(open_replay(name, asked.table), asked)
    except (ToolkitError, BoardError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _record(name: str, work: Path, output: Path, seed: int) -> None:
    table = record(name, TABLES[name], Place(*board_with(1), work), seed=seed)
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


def _search(replay: Replay, asked: argparse.Namespace) -> None:
    """A JSON line for each trial: the same table and seed print the same bytes."""
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="measure every configuration of a reduced space")
    recording.add_argument("names", nargs="+", choices=TABLES)
    recording.add_argument("--work", type=Path, default=WORK, help="records of unfinished tables")
    recording.add_argument("--output", type=Path, help="default: benchmarks/replay/NAME.tfbr")
    recording.add_argument("--seed", type=int, default=0)
    shown = commands.add_parser("show", help="what a table holds")
    searched = commands.add_parser("search", help="run one search on a table")
    for command in (shown, searched):
        command.add_argument("name", choices=TABLES)
        command.add_argument("--table", type=Path, help="default: benchmarks/replay/NAME.tfbr")
    searched.add_argument("--tuner", choices=TUNERS, default="annealing")
    searched.add_argument("--cost-model", choices=COST_MODELS, default=SearchOptions().cost_model)
    searched.add_argument("--preset", default="wide")
    searched.add_argument("--alpha", type=float)
    searched.add_argument("--trials", type=int, default=200)
    searched.add_argument("--batch", type=int, default=64)
    searched.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
