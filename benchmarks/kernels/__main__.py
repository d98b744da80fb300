"""Our kernels and networks against other libraries': tune ours, measure everybody, print the tables.

    python -m benchmarks.kernels tune --set conv,networks --trials 400 --threads 1,2
    python -m benchmarks.kernels run                          tune what is missing, then measure
    python -m benchmarks.kernels measure --only conv --json build/bench/kernels.json
    python -m benchmarks.kernels networks --trials 64         ResNet-18 and MobileNet-v2, end to end
    python -m benchmarks.kernels random --count 50            untuned kernels and numpy on shapes from a seed
    python -m benchmarks.kernels loops --board rpi3b          their inner loops as machine code: spills
    python -m benchmarks.kernels compile                      what it costs to compile a candidate
    python -m benchmarks.kernels report build/bench/kernels.json
    python -m benchmarks.kernels goals build/bench/*.json     what must be reached, and whether it was
    python -m benchmarks.kernels setup-peers build/peers

Tuning and measuring go on where they were stopped. Libraries that are not installed are reported as not
measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

from benchmarks.kernels.arguments import parser
from benchmarks.kernels.columns import aligned
from benchmarks.kernels.compile_cost import compile_cost, compile_findings, lines
from benchmarks.kernels.environments import make_environments
from benchmarks.kernels.goals import summary
from benchmarks.kernels.host import board_with
from benchmarks.kernels.inference import SUITE as NETWORKS
from benchmarks.kernels.measuring import Turnout, measure_all
from benchmarks.kernels.networks import NAMES, chosen_networks, tuned_network
from benchmarks.kernels.processes import LIBRARIES, contenders
from benchmarks.kernels.random_shapes import random_workloads
from benchmarks.kernels.results import Finding, GoalReport, read, read_goals, write
from benchmarks.kernels.rounds import Measured, Plan
from benchmarks.kernels.tables import text
from benchmarks.kernels.tune import Effort, tune
from benchmarks.kernels.winners import DRAWN, loop_findings, table, winners
from benchmarks.kernels.workloads import Workload, chosen
from boards.board import BoardError
from toolkit.errors import ToolkitError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    asked = parser(__doc__).parse_args(arguments)
    try:
        COMMANDS[asked.command](asked)
    except (ToolkitError, BoardError, ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"benchmarks.kernels: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, ToolkitError) else 2
    except KeyboardInterrupt:
        print("stopped; what was tuned is recorded, run the same command to go on", file=sys.stderr)
        return 130
    return 0


def _tune(asked: argparse.Namespace) -> None:
    """Operators first: networks share what is known about theirs."""
    operators, networks = _sorted_names(asked.only)
    for threads in asked.threads:
        if operators is not None:
            tune(operators, threads, asked.records, _effort(asked))
        for name in networks:
            tuned_network(name, threads, asked.records, _effort(asked), _say)


def _measure(asked: argparse.Namespace) -> None:
    workloads = chosen(asked.only)
    _measured(asked, lambda _: workloads, LIBRARIES)


def _run(asked: argparse.Namespace) -> None:
    _tune(asked)
    _measure(asked)


def _networks(asked: argparse.Namespace) -> None:
    """All tuning comes first: a measurement can only be gone on with while the records stay as they are."""
    tuned = {
        threads: [
            tuned_network(name, threads, asked.records, _effort(asked), _say)
            for name in chosen_networks(asked.only)
        ]
        for threads in asked.threads
    }
    _measured(asked, lambda threads: tuned[threads], LIBRARIES)


def _random(asked: argparse.Namespace) -> None:
    workloads = random_workloads(asked.count, asked.seed)
    _measured(asked, lambda _: workloads, ["numpy"])


def _loops(asked: argparse.Namespace) -> None:
    found: list[Finding] = []
    for threads in asked.threads:
        board, target = board_with(threads, asked.board)
        drawn = 0 if board.link.kind == "local" else DRAWN  # what can be measured needs no model
        rows = list(winners(chosen(asked.only), board, target, asked.records, drawn=drawn, seed=asked.seed))
        print("\n".join(table(board, target, rows)))
        found += loop_findings(board, target, rows)
    _conclude(asked, found)


def _compile(asked: argparse.Namespace) -> None:
    found: list[Finding] = []
    for workload in chosen(asked.only):
        cost = compile_cost(workload, asked.count, asked.seed)
        print("\n".join(lines(workload, cost)))
        found += compile_findings(workload, cost)
    _conclude(asked, found)


def _report(asked: argparse.Namespace) -> None:
    print("\n\n".join(text(read(path)) for path in asked.files))


def _goals(asked: argparse.Namespace) -> None:
    _conclude(asked, [goal for path in asked.files for goal in read_goals(path)])


def _setup_peers(asked: argparse.Namespace) -> None:
    make_environments(asked.folder)


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "tune": _tune,
    "measure": _measure,
    "run": _run,
    "networks": _networks,
    "random": _random,
    "loops": _loops,
    "compile": _compile,
    "report": _report,
    "goals": _goals,
    "setup-peers": _setup_peers,
}


def _effort(asked: argparse.Namespace) -> Effort:
    return Effort(asked.trials, asked.seconds, asked.seed)


def _sorted_names(names: Sequence[str]) -> tuple[list[Workload] | None, list[str]]:
    """Operators and networks among the names; every operator for no name.

    Raises:
        ValueError: a name is neither.
    """
    networks = [name for name in names if name in (*NAMES, NETWORKS)]
    operators = [name for name in names if name not in networks]
    return (chosen(operators) if operators or not names else None), (
        chosen_networks(networks) if networks else []
    )


def _measured(
    asked: argparse.Namespace, workloads: Callable[[int], Iterable[Measured]], libraries: Sequence[str]
) -> None:
    own = ("--records", str(asked.records.absolute()), "--finalists", str(asked.finalists))
    everybody = contenders(asked.peers, own, asked.libraries or libraries)
    plan = Plan(asked.rounds, asked.batches, asked.batch_ms / 1e3)
    print(text(measure_all(workloads, asked.threads, Turnout(everybody, plan, asked.json, _say))))


def _conclude(asked: argparse.Namespace, found: Sequence[Finding]) -> None:
    print("\n".join(summary(found, aligned)))
    if asked.json:
        write(GoalReport(goals=tuple(found)), asked.json)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
