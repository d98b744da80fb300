"""Measured trials per second of tuning C6 on this machine: search, compile, link, check and time.

Each run starts from nothing with its own seed and records file. The board is this machine, so compiling and
measuring take turns on its cores; the busy share is the part of the time in which a kernel was being checked
or timed. What is left, the idle time, is spent waiting for the compiler or it is search overhead: everything
else. Of it are printed what the search alone took and the way to the board: what else passed while a batch
was measured, of which storing its trials is a part.

    python -m benchmarks.tuning_throughput [--runs 3] [--trials 256]
    python -m benchmarks.tuning_throughput --apart [--images 16]

With --apart the board has cores of its own, as a board on a cable has: kernels run on this machine's first
core, search and compilers on the others, and the next batch is made while one is measured. A kernel of one
image is so short here that compilers on one core cannot keep up; on --images 16 a trial takes about as long
as with one image on a board with a tenth of this core's speed.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.command import Asked, finished, program
from benchmarks.harness.operators import Convolution
from benchmarks.harness.place import HOST, WAIT_S, with_cores
from benchmarks.harness.text import spread
from boards.board import load
from toolkit.measure.session import open_session
from toolkit.records import Records
from toolkit.tuning.on_board import BoardOptions, tune_on_board
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget, TuningResult


def tuned(asked: Asked, seed: int) -> TuningResult:
    """Tune once; print how trials failed, if any did."""
    board = load(HOST)
    target, ours = board.target(), board.target().cores
    if asked.apart:
        target, ours = with_cores(target, 1), tuple(core for core in ours if core != target.cores[0])
    tuning = TuningOptions(seed=seed, batch=asked.batch, overlap=asked.apart)
    options = BoardOptions(target=target, workers=len(ours), tuning=tuning)
    images = Convolution("conv2d", (28, 28), 128, 128, (3, 3), (1, 1), (1, 1), batch=asked.images)
    c6 = images.operator("C6", ("data", "weight", "C6"))
    with (
        tempfile.TemporaryDirectory(prefix="tfb-bench-") as folder,
        Records(Path(folder) / "records.db") as records,
        open_session(board, holder="benchmarks.tuning_throughput", wait_s=WAIT_S) as session,
    ):
        if asked.apart:
            os.sched_setaffinity(0, ours)  # of this process and the compilers; the board's is running already
        (result,) = tune_on_board(
            [("C6", c6)], board, session, records, Budget(asked.trials), options=options
        )
        failures = collections.Counter(record.error_kind for record in records if record.error_kind)
        if failures:
            print("failures:", ", ".join(f"{count} {kind}" for kind, count in failures.items()))
    return result


def run(asked: Asked) -> None:
    """Print rate, busy share and what was found. Raises ValueError where one core is to be two."""
    cores = sorted(os.sched_getaffinity(0))
    if asked.apart and len(cores) < 2:
        raise ValueError("--apart needs two cores, this process may use one")
    where = f"kernels on core {cores[0]}, the rest on others" if asked.apart else f"{len(cores)} cores"
    print(f"C6, {asked.trials} trials a run, {where}, load before {os.getloadavg()[0]:.1f}")
    results = []
    for seed in range(asked.runs):
        os.sched_setaffinity(0, cores)
        results.append(tuned(asked, seed))
    print(spread("measured trials", [r.measured / r.accounts.wall_s for r in results], "trials/s"))
    accounts = [r.accounts for r in results]
    for name, shares in (
        ("board busy", [a.busy_share for a in accounts]),
        ("board idle", [a.idle_share for a in accounts]),
        ("waiting for the compiler", [a.compile_share for a in accounts]),
        ("search overhead", [a.overhead_share for a in accounts]),
        ("  proposing alone", [a.propose_s / a.wall_s for a in accounts]),
        ("  the way to the board", [(a.measure_s - a.device_s) / a.wall_s for a in accounts]),
    ):
        print(spread(name, [100 * share for share in shares], "% of time"))
    print(spread("default schedule", [r.default_gflops for r in results], "GFLOP/s"))
    print(spread("best schedule", [r.best_gflops for r in results], "GFLOP/s"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("tuning_throughput", __doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=1, help="images in a batch of the operator")
    parser.add_argument("--apart", action="store_true", help="kernels on one core, everything else on others")
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
