"""Reuse of tuned programs against searching each operator, on one core of a CPU or on a GPU (ETO, Fig. 7).

    python -m benchmarks.reuse pairs                            10 pairs of each family, 400 trials a search
    python -m benchmarks.reuse pairs --families conv2d norm --pairs 2 --trials 100
    python -m benchmarks.reuse pairs --board pocl --families conv2d --pairs 1 --trials 4    for function alone
    python -m benchmarks.reuse select                           who reuses whom in the sets of Table 2
    python -m benchmarks.reuse sets --sets bert-base --trials 100           whole sets by every method

For each family random operators that may reuse each other: both are tuned by the learned search, and each
again by reuse of the other's tuned program, which makes two pairs. Throughput is the reuse's best against the
search's best of all trials, both timed again in turn; the speed-up compares the reuse's time with the
search's time until it found its best, and until it came within 1 % of that. Everything measured is kept in
--work: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.experiments.statistics import mean_interval
from benchmarks.kernels.columns import aligned
from benchmarks.reuse.families import FAMILIES
from benchmarks.reuse.pairs import Bench, Outcome, measure
from benchmarks.reuse.results import keep, kept
from benchmarks.reuse.select_table import print_selections
from benchmarks.reuse.set_runs import METHODS, Machine
from benchmarks.reuse.set_table import keep_outcomes, measure_set, print_outcomes
from benchmarks.reuse.sets import NETWORKS
from boards.board import load
from boards.errors import BoardError
from toolkit.errors import ToolkitError
from toolkit.measure.builder import Builder
from toolkit.measure.session import open_session
from toolkit.reuse.plan.reuse_plan import WORTH

HOST = "host"
WORK = Path("build/reuse")
SETS = Path("build/reuse-sets")
MEASURED = ("resnet-50", "mobilenet-v2", "bert-base")
WAIT_S = 1800.0
INTERRUPTED = 130
HEAD = (
    "family", "pairs", "throughput", "interval", "speed-up to best", "to 1 %",
    "trials reused", "to best", "to 1 %",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        asked.run(asked)
    except (ToolkitError, BoardError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: what is measured is kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    return 0


@contextmanager
def _machine(asked: argparse.Namespace) -> Iterator[Bench]:
    """The board with one core and its session, until the block ends."""
    board = load(asked.board)
    work = asked.work if board.name == HOST else asked.work / board.name
    work.mkdir(parents=True, exist_ok=True)
    target = board.target()
    one_core = msgspec.structs.replace(target, cores=target.cores[:1])
    with (
        open_session(board, wait_s=WAIT_S, holder="benchmarks.reuse") as session,
        Builder(one_core, workers=len(target.cores)) as builder,
    ):
        yield Bench(board, one_core, session, builder, work, asked.trials)


def _select(asked: argparse.Namespace) -> None:
    print_selections(asked.sets, as_json=asked.json)


def _sets(asked: argparse.Namespace) -> None:
    with _machine(asked) as bench:
        machine = Machine(
            bench.board, bench.target, bench.session, bench.builder, bench.work,
            asked.trials, asked.roots or asked.trials, asked.worth,
        )  # fmt: skip
        found = []
        for name in asked.sets:
            found.append(measure_set(machine, name, asked.methods, asked.limit))
            keep_outcomes(bench.work, asked.trials, found[-1])
    print_outcomes([item for outcomes in found for item in outcomes], as_json=asked.json)


def _pairs(asked: argparse.Namespace) -> None:
    """Measure what is missing and print the table."""
    outcomes: list[Outcome] = []
    with _machine(asked) as bench:
        for seed in range(asked.pairs):
            for family in asked.families:
                outcomes.append(_kept(bench, family, seed))
    rows = [_row(name, [item for item in outcomes if item.family == name]) for name in asked.families]
    for line in aligned([HEAD, *rows, _row("all", outcomes)]):
        print(line)


def _kept(bench: Bench, family: str, seed: int) -> Outcome:
    """The outcome of a pair, measured once."""
    path = bench.work / f"{family}-{seed}-{bench.trials}.json"
    earlier = kept(path)
    if earlier is not None:
        return earlier
    outcome = measure(bench, family, seed)
    keep(path, outcome)
    print(
        f"{family} {seed}: throughput {outcome.throughput:.3f}, speed-up {outcome.speedup:.1f} "
        f"({outcome.near_speedup:.1f} to 1 %), {outcome.reused_trials} trials against "
        f"{outcome.searched_trials} ({outcome.near_trials})",
        file=sys.stderr,
        flush=True,
    )
    return outcome


def _row(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    """A line of the table: means over pairs, with a 95 % interval of the throughput."""
    throughput = mean_interval([item.throughput for item in outcomes])
    return [
        name,
        str(len(outcomes)),
        f"{throughput.estimate:.3f}",
        f"{throughput.low:.3f}-{throughput.high:.3f}",
        f"{np.mean([item.speedup for item in outcomes]):.1f}",
        f"{np.mean([item.near_speedup for item in outcomes]):.1f}",
        f"{np.mean([item.reused_trials for item in outcomes]):.0f}",
        f"{np.mean([item.searched_trials for item in outcomes]):.0f}",
        f"{np.mean([item.near_trials for item in outcomes]):.0f}",
    ]


def _parser() -> argparse.ArgumentParser:
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reuse", description=lines[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    pairs = commands.add_parser("pairs", help="single pairs of operators")
    pairs.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    pairs.add_argument("--board", default=HOST, help=f"a board of the library (default: {HOST})")
    pairs.add_argument("--pairs", type=int, default=10, help="of each family (default: 10)")
    pairs.add_argument(
        "--trials", type=int, default=400, help="of a search, and at most of a reuse (default: 400)"
    )
    pairs.add_argument("--work", type=Path, default=WORK, help=f"finished work (default: {WORK})")
    pairs.set_defaults(run=_pairs)
    chosen = commands.add_parser("select", help="who reuses whom in operator sets, without a board")
    chosen.add_argument("--sets", nargs="+", choices=tuple(NETWORKS), default=list(NETWORKS))
    chosen.add_argument("--json", action="store_true")
    chosen.set_defaults(run=_select)
    sets = commands.add_parser("sets", help="whole operator sets, tuned by every method")
    sets.add_argument("--sets", nargs="+", choices=tuple(NETWORKS), default=list(MEASURED))
    sets.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    sets.add_argument("--board", default=HOST, help=f"a board of the library (default: {HOST})")
    sets.add_argument("--trials", type=int, default=400, help="of each searched operator (default: 400)")
    sets.add_argument("--roots", type=int, help="of each operator that a reuse searches (default: --trials)")
    sets.add_argument(
        "--worth", type=float, default=WORTH, help=f"trials for 1 %% of latency, 0: none (default: {WORTH:g})"
    )
    sets.add_argument(
        "--limit", type=int, help="only so many operators of each set, those with the most work"
    )
    sets.add_argument("--work", type=Path, default=SETS, help=f"finished work (default: {SETS})")
    sets.add_argument("--json", action="store_true")
    sets.set_defaults(run=_sets)
    return parser


if __name__ == "__main__":
    sys.exit(main())
