"""What checking on further sets of data costs: seconds of the board for a trial of untuned programs, C6's and
that of a small dense layer, which has many more sets, in turn with all sets and with the timed one alone.

    python -m benchmarks.check_cost [--rounds 40]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.harness.command import Asked, finished, program
from benchmarks.harness.place import HOST, open_place
from benchmarks.harness.text import spread
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import WORKLOADS, Workload, dense
from boards.board import load
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from toolkit.measure.builder import BuiltKernel
from toolkit.measure.live import LiveRunner, RunnerOptions


def run(asked: Asked) -> None:
    """Measure in turn; print the spreads and their ratio."""
    board = load(HOST)
    options = RunnerOptions.of(board.measure)
    with open_place(board, board.target(), "check_cost") as place:
        for of in (WORKLOADS["C6"], Workload("small", "matmul", dense(16, 16, 16))):
            programs = Programs(space_of(operator(of), place.target))
            runner = LiveRunner(programs, place.builder, place.session, options)
            (built,) = place.builder.build([("tfb_untuned", programs.nest(programs.space.default()))])
            assert isinstance(built, BuiltKernel)
            taken: dict[int | None, list[float]] = {None: [], 1: []}
            for _ in range(asked.rounds):
                for sets, seconds in taken.items():
                    measured = runner._run(built, options.timing, sets)
                    assert measured.error is None, measured.error
                    seconds.append(measured.device_s)
            print(f"{of.name}: {len(runner._data)} sets")
            print(spread("a trial, all sets", [1e3 * second for second in taken[None]], "ms"))
            print(spread("a trial, the timed set", [1e3 * second for second in taken[1]], "ms"))
            ratios = [all_s / one_s for all_s, one_s in zip(taken[None], taken[1], strict=True)]
            print(spread("all sets beside the timed one", [100 * ratio for ratio in ratios], "%"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("check_cost", __doc__)
    parser.add_argument("--rounds", type=int, default=40, help="trials of each kind (default 40)")
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
