"""What checking on further sets of data costs: seconds of the board for a trial of C6's untuned program, in
turn with all sets and with the timed one alone.

    python -m benchmarks.check_cost [--rounds 40]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import msgspec

from benchmarks.c6 import c6, spread
from boards.board import load
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from toolkit.measure.builder import Builder, BuiltKernel
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import open_session


def main() -> None:
    """Parse the arguments, measure in turn, print the spreads and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="trials of each kind (default 40)")
    rounds = parser.parse_args().rounds
    board = load("host")
    target = board.target()
    programs = Programs(space_of(c6(), target))
    options = RunnerOptions.of(board.measure)
    with tempfile.TemporaryDirectory() as folder, Builder(target, workers=1) as builder:
        link = msgspec.structs.replace(board.link, device_dir=folder)
        with open_session(msgspec.structs.replace(board, link=link), cache_dir=Path(folder)) as session:
            runner = LiveRunner(programs, builder, session, options)
            (built,) = builder.build([("tfb_c6", programs.nest(programs.space.default()))])
            assert isinstance(built, BuiltKernel)
            taken: dict[int | None, list[float]] = {None: [], 1: []}
            for _ in range(rounds):
                for sets, seconds in taken.items():
                    measured = runner._run(built, options.timing, sets)
                    assert measured.error is None, measured.error
                    seconds.append(measured.device_s)
    print(spread("a trial, all sets", [1e3 * second for second in taken[None]], "ms"))
    print(spread("a trial, the timed set", [1e3 * second for second in taken[1]], "ms"))
    ratios = [all_s / one_s for all_s, one_s in zip(taken[None], taken[1], strict=True)]
    print(spread("all sets beside the timed one", [100 * ratio for ratio in ratios], "%"))


if __name__ == "__main__":
    main()
