"""Our kernels and networks against other libraries': tune ours, measure everybody, print the tables.

    python -m benchmarks.kernels tune --set conv,networks --trials 400 --threads 1,2
    python -m benchmarks.kernels run                          tune what is missing, then measure
    python -m benchmarks.kernels measure --only conv --json build/bench/kernels.json
    python -m benchmarks.kernels networks --trials 64         ResNet-18 to a ViT, end to end
    python -m benchmarks.kernels networks --board host:x86-64-v3    everybody as on a PC without AVX-512
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

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.harness.command import Asked, Parser, finished, names, numbers, program, subcommands
from benchmarks.harness.documents import write
from benchmarks.harness.place import HOST, board_with
from benchmarks.kernels.compile_cost import compile_cost, compile_findings, lines
from benchmarks.kernels.environments import make_environments
from benchmarks.kernels.goals import summary
from benchmarks.kernels.hidden import hidden
from benchmarks.kernels.inference import SUITE as NETWORKS
from benchmarks.kernels.measuring import Turnout, measure_all
from benchmarks.kernels.networks import NAMES, Place, chosen_networks, tuned_network
from benchmarks.kernels.processes import LIBRARIES, NETWORK_LIBRARIES, contenders
from benchmarks.kernels.random_shapes import random_workloads
from benchmarks.kernels.results import Finding, GoalReport, read, read_goals
from benchmarks.kernels.rounds import Measured, Plan
from benchmarks.kernels.tables import text
from benchmarks.kernels.tune import Effort, tune
from benchmarks.kernels.winners import DRAWN, loop_findings, table, winners
from benchmarks.kernels.workloads import chosen

RECORDS = Path("build/bench/kernels.db")
PEERS = Path("build/peers")
PLAN = Plan()
LOOPS_BOARD = f"its name or file (default {HOST})"
BOARD = f"as a CPU of a lower level, all libraries too: host:x86-64-v3, host:x86-64-v2 (default {HOST})"


def _tune(asked: Asked) -> None:
    """Operators first: networks share what is known about theirs. Without names: every operator."""
    networks = [name for name in asked.only if name in (*NAMES, NETWORKS)]
    operators = [name for name in asked.only if name not in networks]
    workloads = chosen(operators) if operators or not networks else []
    for threads in asked.threads:
        tune(workloads, threads, asked.records, _effort(asked), asked.board)
        for name in chosen_networks(networks) if networks else ():
            tuned_network(name, threads, asked.records, _effort(asked), Place(board=asked.board))


def _measure(asked: Asked, *, tuning: bool = False) -> None:
    workloads = chosen(asked.only)
    with hidden(asked.board) as preload:  # before hours of tuning, as this may refuse
        if tuning:
            _tune(asked)
        _measured(asked, lambda _: workloads, LIBRARIES, preload)


def _run(asked: Asked) -> None:
    _measure(asked, tuning=True)


def _networks(asked: Asked) -> None:
    """All tuning comes first: a measurement can only be gone on with while the records stay as they are."""
    names, place = chosen_networks(asked.only), Place(board=asked.board)
    with hidden(asked.board) as preload:
        tuned = {
            threads: [tuned_network(name, threads, asked.records, _effort(asked), place) for name in names]
            for threads in asked.threads
        }
        _measured(asked, lambda threads: tuned[threads], NETWORK_LIBRARIES, preload)


def _random(asked: Asked) -> None:
    workloads = random_workloads(asked.count, asked.seed)
    with hidden(asked.board) as preload:
        _measured(asked, lambda _: workloads, ["numpy"], preload)


def _measured(
    asked: Asked,
    workloads: Callable[[int], Iterable[Measured]],
    libraries: Sequence[str],
    preload: Path | None,
) -> None:
    own = ("--records", str(asked.records.absolute()), "--finalists", str(asked.finalists))
    before = asked.before and asked.before.absolute()
    named = libraries if asked.libraries is None else asked.libraries
    plan = Plan(asked.rounds, asked.batches, asked.batch_ms / 1e3)
    everybody = contenders(asked.peers, own, named, before, board=asked.board, preload=preload)
    turnout = Turnout(everybody, plan, asked.json, _say, asked.board)
    print(text(measure_all(workloads, asked.threads, turnout)))


def _loops(asked: Asked) -> None:
    found: list[Finding] = []
    for threads in asked.threads:
        board, target = board_with(threads, asked.board)
        drawn = 0 if board.link.kind == "local" else DRAWN  # what can be measured needs no model
        rows = list(winners(chosen(asked.only), board, target, asked.records, drawn=drawn, seed=asked.seed))
        print("\n".join(table(board, target, rows)))
        found += loop_findings(board, target, rows)
    _conclude(asked, found)


def _compile(asked: Asked) -> None:
    found: list[Finding] = []
    for workload in chosen(asked.only):
        cost = compile_cost(workload, asked.count, asked.seed)
        print("\n".join(lines(workload, cost)))
        found += compile_findings(workload, cost)
    _conclude(asked, found)


def _report(asked: Asked) -> None:
    print("\n\n".join(text(read(path)) for path in asked.files))


def _goals(asked: Asked) -> None:
    _conclude(asked, [goal for path in asked.files for goal in read_goals(path)])


def _conclude(asked: Asked, found: Sequence[Finding]) -> None:
    print("\n".join(summary(found)))
    if asked.json:
        write(GoalReport(goals=tuple(found)), asked.json)


def _effort(asked: Asked) -> Effort:
    return Effort(asked.trials, asked.seconds, asked.seed)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------- options


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("kernels", __doc__)
    add = subcommands(parser)
    tuning = add("tune", _tune, "tune our kernels and networks, measure nobody else")
    measuring = add("measure", _measure, "measure everybody in turn")
    running = add("run", _run, "tune, then measure")
    networks = add("networks", _networks, "tune, then measure whole networks")
    drawn = add("random", _random, "our untuned kernels and numpy on shapes drawn from a seed")
    drawn.add_argument("--count", type=int, default=50)
    loops = add("loops", _loops, "the innermost loops of our kernels, as machine code")
    compiling = add("compile", _compile, "what it costs to compile a candidate")
    compiling.add_argument("--only", type=names, default=["C6"], metavar="NAMES", help="default C6")
    compiling.add_argument("--count", type=int, default=64, help="random configurations (default 64)")
    compiling.add_argument("--seed", type=int, default=0)
    reporting = add("report", _report, "print the tables of files of --json")
    goals = add("goals", _goals, "what must be reached, from all files of --json")
    peers = add(
        "setup-peers",
        lambda asked: make_environments(asked.folder),
        "install the libraries, each in a place of its own",
    )
    peers.add_argument("folder", type=Path, nargs="?", default=PEERS)
    for command in (tuning, measuring, running, networks, drawn, loops):
        shared = command.add_argument
        shared("--threads", type=numbers, default=[1], metavar="COUNTS", help="1, 2 or 1,2 (default 1)")
        shared("--records", type=Path, default=RECORDS, help=f"tuning records (default {RECORDS})")
        shared("--seed", type=int, default=0, help="of the search, and of random shapes")
        shared("--board", default=HOST, help=LOOPS_BOARD if command is loops else BOARD)
    for command in (tuning, measuring, running, networks, loops):
        command.add_argument(
            "--only", "--set", type=names, default=[], metavar="NAMES",
            help="operators, suites or networks: C1,C6,matmul,resnet18 (default: all operators; "
            "for networks: all networks)",
        )  # fmt: skip
    for command in (tuning, running, networks):
        command.add_argument("--trials", type=int, default=400, help="at most, of an operator (default 400)")
        command.add_argument(
            "--seconds", type=float, help="tune an operator at most so long (default: no limit)"
        )
    for command in (measuring, running, networks, drawn):
        _add_measuring(command)
    for command in (loops, compiling, goals):
        command.add_argument("--json", type=Path, help="write what was found to this file")
    for command in (reporting, goals):
        command.add_argument("files", type=Path, nargs="+")
    return finished(parser, arguments)


def _add_measuring(command: Parser) -> None:
    add = command.add_argument
    add("--peers", type=Path, default=PEERS, help=f"the libraries' environments (default {PEERS})")
    known = f"default {','.join(LIBRARIES)}; for networks ncnn too, for random shapes numpy"
    add("--libraries", type=names, metavar="NAMES", help=known)
    add("--before", type=Path, metavar="FOLDER", help="a checkout with its .venv: its kernels beside ours")
    add("--rounds", type=int, default=PLAN.rounds)
    add("--batches", type=int, default=PLAN.batches, help="undisturbed batches of a turn")
    add("--batch-ms", type=float, default=1e3 * PLAN.batch_s)
    add("--finalists", type=int, default=4, help="our fastest records measured again first")
    add("--json", type=Path, help="write every turn to this file, after every operator; goes on with it")


if __name__ == "__main__":
    sys.exit(main())
