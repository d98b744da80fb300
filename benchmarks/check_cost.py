"""What checking on further sets of data costs: trials of untuned programs, C6's and those of a small dense
layer and a small softmax, which have many more sets, in turn with all sets and with the timed one alone.

CPU time of the measurement's process is what a busy machine cannot change much, and the calls are counted; on
one that is otherwise idle the seconds of the board say the same.

    python -m benchmarks.check_cost [--rounds 40]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness.command import Asked, finished, program
from benchmarks.harness.place import HOST, open_place
from benchmarks.harness.text import spread
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import WORKLOADS, Workload, dense
from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.norm import softmax
from cross.loopnest.nodes import For, LoopKind, statements
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from device_runtime.protocol import MeasureResult, Timing
from toolkit.measure.builder import BuiltKernel
from toolkit.measure.live import LiveRunner, RunnerOptions

CALLS_S = (
    20e-3  # of calls at the target's peak, which tell how long one takes; real ones are some times slower
)
FEWEST, MOST = 8, 20_000


def softmax_rows() -> Operator:
    """64 rows of 32."""
    return Operator("softmax", (data := placeholder((64, 32), "data"),), softmax(data, 1))


def run(asked: Asked) -> None:
    """Measure in turn; print the spreads and their ratio."""
    board = load(HOST)
    options = RunnerOptions.of(board.measure)
    subjects = {
        "C6": operator(WORKLOADS["C6"]),
        "small": operator(Workload("small", "matmul", dense(16, 16, 16))),
        "softmax": softmax_rows(),
    }
    with open_place(board, board.target(), "check_cost") as place:
        for name, of in subjects.items():
            programs = Programs(space_of(of, place.target))
            runner = LiveRunner(programs, place.builder, place.session, options)
            nest = programs.nest(programs.space.default())
            (built,) = place.builder.build([("tfb_untuned", nest)])
            assert isinstance(built, BuiltKernel)
            loops = [part for part in statements(nest.body) if isinstance(part, For)]
            parallel = any(loop.kind is LoopKind.PARALLEL for loop in loops)
            threads = place.target.threads if parallel else 1
            timing = _counted(runner, built, options.timing, threads)
            taken: dict[bool, list[MeasureResult]] = {True: [], False: []}
            for _ in range(asked.rounds):
                for every, results in taken.items():
                    results.append(_asked(runner, built, timing, every))
                    assert results[-1].error is None, results[-1].error
            calls = timing.number * timing.repeat
            print(f"{name}: {len(runner._data)} sets, one call each; {calls:,} timed calls")
            _print("CPU time", [[result.cpu_s for result in results] for results in taken.values()])
            _print("the board's", [[result.device_s for result in results] for results in taken.values()])


def _asked(runner: LiveRunner, built: BuiltKernel, timing: Timing, every: bool) -> MeasureResult:
    """The board's answer with every set of data, or with the timed one alone."""
    request = runner._request(built, timing)
    return runner._session.measure(request if every else replace(request, more_data=()))


def _counted(runner: LiveRunner, built: BuiltKernel, timing: Timing, threads: int) -> Timing:
    """As many calls as fit into the shortest repeat, judged by the CPU time of `threads`."""
    peak_s = built.kernel.flops / (1e9 * runner._space.target.estimated_peak_gflops)
    few = min(MOST, max(FEWEST, int(CALLS_S / peak_s)))
    cpu_s = []
    for number in (1, few + 1):
        counted = replace(timing, number=number, max_number=number, repeat=1, min_repeat_ms=0.0)
        cpu_s.append(min(_asked(runner, built, counted, False).cpu_s for _ in range(3)))
    number = max(1, int(1e-3 * timing.min_repeat_ms * few * threads / (cpu_s[1] - cpu_s[0])))
    return replace(timing, number=number, max_number=number, min_repeat_ms=0.0)


def _print(what: str, taken: Sequence[Sequence[float]]) -> None:
    """Trials with all sets and with the timed one, and the difference of their medians."""
    for name, seconds in zip(("all sets", "the timed set"), taken, strict=True):
        print(spread(f"a trial, {name}, {what}", [1e3 * second for second in seconds], "ms"))
    every, one = map(statistics.median, taken)
    print(f"checking, {what}: {100 * (every - one) / one:.1f} % of a trial")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("check_cost", __doc__)
    parser.add_argument("--rounds", type=int, default=40, help="trials of each kind (default 40)")
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
