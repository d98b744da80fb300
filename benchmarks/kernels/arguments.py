"""The commands and their options: `parser()` reads what __main__.py does."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.kernels.processes import LIBRARIES
from benchmarks.kernels.rounds import Plan

RECORDS = Path("build/bench/kernels.db")
PEERS = Path("build/peers")
PLAN = Plan()
RANDOM_COUNT = 50


def parser(description: str | None) -> argparse.ArgumentParser:
    """All commands."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = made.add_subparsers(dest="command", required=True)
    shared, chosen, tuning, measuring = _shared(), _chosen(), _tuning(), _measuring()

    def command(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, parents=list(parents), help=text, description=text)

    command("tune", "tune our kernels and networks, measure nobody else", shared, chosen, tuning)
    command("measure", "measure everybody in turn", shared, chosen, measuring)
    command("run", "tune, then measure", shared, chosen, tuning, measuring)
    command("networks", "tune, then measure whole networks", shared, chosen, tuning, measuring)
    drawn = command("random", "our untuned kernels and numpy on shapes drawn from a seed", shared, measuring)
    drawn.add_argument("--count", type=int, default=RANDOM_COUNT)
    loops = command("loops", "the innermost loops of our kernels, as machine code", shared, chosen)
    loops.add_argument("--board", default="host", help="its name or file (default host)")
    compiling = command("compile", "what it costs to compile a candidate")
    compiling.add_argument("--only", type=_names, default=["C6"], metavar="NAMES", help="default C6")
    compiling.add_argument("--count", type=int, default=64, help="random configurations (default 64)")
    compiling.add_argument("--seed", type=int, default=0)
    for name in (loops, compiling):
        name.add_argument("--json", type=Path, help="write what was found to this file")
    command("report", "print the tables of files of --json").add_argument("files", type=Path, nargs="+")
    goals = command("goals", "what must be reached, from all files of --json")
    goals.add_argument("files", type=Path, nargs="+")
    goals.add_argument("--json", type=Path, help="write the goals to this file")
    peers = command("setup-peers", "install the libraries, each in a place of its own")
    peers.add_argument("folder", type=Path, nargs="?", default=PEERS)
    return made


def _shared() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(add_help=False)
    add = made.add_argument
    add("--threads", type=_counts, default=[1], metavar="COUNTS", help="1, 2 or 1,2 (default 1)")
    add("--records", type=Path, default=RECORDS, help=f"tuning records (default {RECORDS})")
    add("--seed", type=int, default=0, help="of the search, and of random shapes")
    return made


def _chosen() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument(
        "--only", "--set", type=_names, default=[], metavar="NAMES",
        help="operators, suites or networks: C1,C6,matmul,resnet18 (default: all operators; "
        "for networks: all networks)",
    )  # fmt: skip
    return made


def _tuning() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(add_help=False)
    made.add_argument("--trials", type=int, default=400, help="at most so many an operator (default 400)")
    made.add_argument(
        "--seconds", type=float, help="tune an operator at most so long now (default: no limit)"
    )
    return made


def _measuring() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(add_help=False)
    add = made.add_argument
    add("--peers", type=Path, default=PEERS, help=f"the libraries' environments (default {PEERS})")
    known = f"default {','.join(LIBRARIES)}; for random shapes numpy"
    add("--libraries", type=_names, metavar="NAMES", help=known)
    add("--rounds", type=int, default=PLAN.rounds)
    add("--batches", type=int, default=PLAN.batches, help="undisturbed batches of a turn")
    add("--batch-ms", type=float, default=1e3 * PLAN.batch_s)
    add("--finalists", type=int, default=4, help="our fastest records measured again first")
    add("--json", type=Path, help="write every turn to this file, after every operator; goes on with it")
    return made


def _names(value: str) -> list[str]:
    return [name for name in value.split(",") if name]


def _counts(value: str) -> list[int]:
    return [int(count) for count in value.split(",")]
