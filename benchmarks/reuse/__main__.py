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

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.command import Asked, finished, program, subcommands
from benchmarks.harness.place import HOST, open_place, with_cores
from benchmarks.harness.text import aligned
from benchmarks.reuse.families import FAMILIES
from benchmarks.reuse.pairs import Outcome, Setting, measure
from benchmarks.reuse.results import keep, kept, of_family
from benchmarks.reuse.select import print_selections
from benchmarks.reuse.set_runs import METHODS
from benchmarks.reuse.set_table import keep_outcomes, measure_set, print_outcomes
from benchmarks.reuse.sets import NETWORKS
from boards.board import load
from toolkit.reuse.plan.reuse_plan import WORTH

WORK = Path("build/reuse")
SETS = Path("build/reuse-sets")
MEASURED = ("resnet-50", "mobilenet-v2", "bert-base")
HEAD = (
    "family", "pairs", "throughput", "interval", "speed-up to best", "to 1 %",
    "trials reused", "to best", "to 1 %",
)  # fmt: skip


@contextmanager
def _setting(asked: Asked) -> Iterator[Setting]:
    """One core of the board, or its GPU, until the block ends."""
    board = load(asked.board)
    work = asked.work if board.name == HOST else asked.work / board.name
    work.mkdir(parents=True, exist_ok=True)
    roots, worth = getattr(asked, "roots", None), getattr(asked, "worth", 0.0)
    with open_place(board, with_cores(board.target(), 1), "reuse") as place:
        yield Setting(place, work, asked.trials, roots or asked.trials, worth)


def _select(asked: Asked) -> None:
    print_selections(asked.sets, as_json=asked.json)


def _sets(asked: Asked) -> None:
    found = []
    with _setting(asked) as setting:
        for name in asked.sets:
            found.append(measure_set(setting, name, asked.methods, asked.limit))
            keep_outcomes(setting.work, asked.trials, found[-1])
    print_outcomes([item for outcomes in found for item in outcomes], as_json=asked.json)


def _pairs(asked: Asked) -> None:
    """Measure what is missing and print the table."""
    with _setting(asked) as setting:
        seeds = range(asked.pairs)
        outcomes = [_measured(setting, family, seed) for seed in seeds for family in asked.families]
    rows = [_row(name, [item for item in outcomes if item.family == name]) for name in asked.families]
    print("\n".join(aligned([HEAD, *rows, _row("all", outcomes)])))


def _measured(setting: Setting, family: str, seed: int) -> Outcome:
    """The outcome of a pair, measured once."""
    path = setting.work / f"{family}-{seed}-{setting.trials}.json"
    earlier = kept(path)
    if earlier is not None:
        return earlier
    outcome = measure(setting, family, seed)
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
    found = of_family(name, outcomes)
    throughput = found["throughput"]
    return [
        name,
        str(found["pairs"]),
        f"{throughput['estimate']:.3f}",
        f"{throughput['low']:.3f}-{throughput['high']:.3f}",
        *(f"{found[figure]['estimate']:.1f}" for figure in ("speedup", "near_speedup")),
        *(f"{found[f'trials_{which}']:.0f}" for which in ("reused", "searched", "near")),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("reuse", __doc__)
    add = subcommands(parser)
    pairs = add("pairs", _pairs, "single pairs of operators")
    pairs.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=list(FAMILIES))
    pairs.add_argument("--pairs", type=int, default=10, help="of each family (default: 10)")
    chosen = add("select", _select, "who reuses whom in operator sets, without a board")
    chosen.add_argument("--sets", nargs="+", choices=tuple(NETWORKS), default=list(NETWORKS))
    sets = add("sets", _sets, "whole operator sets, tuned by every method")
    sets.add_argument("--sets", nargs="+", choices=tuple(NETWORKS), default=list(MEASURED))
    sets.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    sets.add_argument("--roots", type=int, help="of each operator that a reuse searches (default: --trials)")
    sets.add_argument(
        "--worth", type=float, default=WORTH, help=f"trials for 1 %% of latency, 0: none (default: {WORTH:g})"
    )
    sets.add_argument("--limit", type=int, help="only so many operators of each set, those with most work")
    for command, work in ((pairs, WORK), (sets, SETS)):
        command.add_argument("--board", default=HOST, help=f"a board of the library (default: {HOST})")
        command.add_argument("--trials", type=int, default=400, help="of each search (default: 400)")
        command.add_argument("--work", type=Path, default=work, help=f"finished work (default: {work})")
    for command in (chosen, sets):
        command.add_argument("--json", action="store_true")
    return finished(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
