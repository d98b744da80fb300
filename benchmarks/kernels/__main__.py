"""Our kernels against other libraries': tune ours, measure everybody, print the tables.

    python -m benchmarks.kernels run                          tune, then measure
    python -m benchmarks.kernels tune --only C1,C6 --trials 400 --threads 1,2
    python -m benchmarks.kernels measure --only conv --json build/bench/kernels.json
    python -m benchmarks.kernels random --count 50            untuned kernels and numpy on shapes from a seed
    python -m benchmarks.kernels loops --board rpi3b          their inner loops as machine code: spills
    python -m benchmarks.kernels compile                      what it costs to compile a candidate
    python -m benchmarks.kernels report build/bench/kernels.json
    python -m benchmarks.kernels setup-peers build/peers

Tuning goes on where it was stopped. A library that is not installed is reported as not measured.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.kernels.compile_cost import compile_cost, lines
from benchmarks.kernels.environments import make_environments
from benchmarks.kernels.host import board_with
from benchmarks.kernels.processes import LIBRARIES, LibraryProcess, contenders
from benchmarks.kernels.random_shapes import random_workloads
from benchmarks.kernels.results import Case, Report, read, write
from benchmarks.kernels.rounds import Plan, facts, measure
from benchmarks.kernels.tables import headline, text
from benchmarks.kernels.tune import tune
from benchmarks.kernels.winners import table
from benchmarks.kernels.workloads import Workload, chosen
from boards.board import BoardError
from boards.probe import read_host_facts
from toolkit.errors import ToolkitError

RECORDS = Path("build/bench/kernels.db")
PEERS = Path("build/peers")
PLAN = Plan()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.command in ("tune", "run"):
            _tune(asked)
        if asked.command in ("measure", "run"):
            _measure(asked, chosen(asked.only), asked.libraries or LIBRARIES)
        if asked.command == "random":
            _measure(asked, random_workloads(asked.count, asked.seed), asked.libraries or ["numpy"])
        if asked.command == "loops":
            for threads in asked.threads:
                board, target = board_with(threads, asked.board)
                print("\n".join(table(chosen(asked.only), board, target, asked.records)))
        if asked.command == "compile":
            for workload in chosen(asked.only):
                print("\n".join(lines(workload, compile_cost(workload, asked.count, asked.seed))))
        if asked.command == "report":
            print("\n\n".join(text(read(path)) for path in asked.files))
        if asked.command == "setup-peers":
            make_environments(asked.folder)
    except (ToolkitError, BoardError, ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"benchmarks.kernels: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, ToolkitError) else 2
    except KeyboardInterrupt:
        print("stopped; what was tuned is recorded, run the same command to go on", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    shared, chosen_ones, tuning, measuring = (argparse.ArgumentParser(add_help=False) for _ in range(4))
    _shared_options(shared)
    chosen_ones.add_argument(
        "--only", type=_names, default=[], metavar="NAMES", help="operators or suites: C1,C6,matmul"
    )
    tuning.add_argument("--trials", type=int, default=400, help="at most so many an operator (default 400)")
    _measuring_options(measuring)
    commands.add_parser("tune", parents=[shared, chosen_ones, tuning], help="tune our kernels")
    commands.add_parser("measure", parents=[shared, chosen_ones, measuring], help="measure everybody in turn")
    commands.add_parser("run", parents=[shared, chosen_ones, tuning, measuring], help="tune, then measure")
    drawn = commands.add_parser(
        "random",
        parents=[shared, measuring],
        help="our untuned kernels and numpy on shapes drawn from a seed",
    )
    drawn.add_argument("--count", type=int, default=50)
    loops = commands.add_parser(
        "loops", parents=[shared, chosen_ones], help="the innermost loops of our kernels, as machine code"
    )
    loops.add_argument("--board", default="host", help="its name or file (default host)")
    compiling = commands.add_parser("compile", help="what it costs to compile a candidate")
    compiling.add_argument("--only", type=_names, default=["C6"], metavar="NAMES", help="default C6")
    compiling.add_argument("--count", type=int, default=64, help="random configurations (default 64)")
    compiling.add_argument("--seed", type=int, default=0)
    report = commands.add_parser("report", help="print the tables of files of --json")
    report.add_argument("files", type=Path, nargs="+")
    peers = commands.add_parser("setup-peers", help="install the libraries, each in a place of its own")
    peers.add_argument("folder", type=Path, nargs="?", default=PEERS)
    return parser


def _shared_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--threads", type=_counts, default=[1], metavar="COUNTS", help="1, 2 or 1,2 (default 1)")
    add("--records", type=Path, default=RECORDS, help=f"tuning records (default {RECORDS})")
    add("--seed", type=int, default=0, help="of the search, and of random shapes")


def _measuring_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--peers", type=Path, default=PEERS, help=f"the libraries' environments (default {PEERS})")
    known = f"default {','.join(LIBRARIES)}; for random shapes numpy"
    add("--libraries", type=_names, metavar="NAMES", help=known)
    add("--rounds", type=int, default=PLAN.rounds)
    add("--batches", type=int, default=PLAN.batches, help="undisturbed batches of a turn")
    add("--batch-ms", type=float, default=1e3 * PLAN.batch_s)
    add("--finalists", type=int, default=4, help="our fastest records measured again first")
    add("--json", type=Path, help="write every turn to this file, after every operator")


def _names(value: str) -> list[str]:
    return [name for name in value.split(",") if name]


def _counts(value: str) -> list[int]:
    return [int(count) for count in value.split(",")]


def _tune(asked: argparse.Namespace) -> None:
    for threads in asked.threads:
        tune(chosen(asked.only), threads, asked.records, trials=asked.trials, seed=asked.seed)


def _measure(asked: argparse.Namespace, workloads: Sequence[Workload], libraries: Sequence[str]) -> None:
    plan = Plan(asked.rounds, asked.batches, asked.batch_ms / 1e3)
    own = ("--records", str(asked.records.absolute()), "--finalists", str(asked.finalists))
    everybody = contenders(asked.peers, own, libraries)
    cases: list[Case] = []
    report = Report(
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=_machine(),
        plan={"rounds": plan.rounds, "batches": plan.batches, "batch_s": plan.batch_s},
        libraries={},
        cases=(),
    )
    for threads in asked.threads:
        processes = [LibraryProcess(contender, threads) for contender in everybody]
        try:
            report = msgspec.structs.replace(report, libraries=report.libraries | facts(processes, _say))
            for workload in workloads:
                cases.append(measure(workload, threads, processes, plan))
                _say(f"{threads} thread{'s' * (threads > 1)}, {headline(cases[-1])}")
                report = msgspec.structs.replace(report, cases=tuple(cases))
                if asked.json:
                    write(report, asked.json)
        finally:
            for process in processes:
                process.close()
    print(text(report))


def _machine() -> dict[str, str]:
    host = read_host_facts()
    return {
        "model": host.model,
        "machine": host.machine,
        "cores": str(len(host.cores)),
        "system": platform.platform(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
