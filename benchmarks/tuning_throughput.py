"""Measured trials per second of tuning C6 on this machine: search, compile, link, check and time.

Each run starts from nothing with its own seed and records file. The board is this machine, so compiling and
measuring take turns on its cores; the busy share is the part of the time in which a kernel was being checked
or timed. What is left, the idle time, is spent waiting for the compiler or it is search overhead: everything
else, of it what the search alone took is printed too.

    python -m benchmarks.tuning_throughput [--runs 3] [--trials 256]
    python -m benchmarks.tuning_throughput --apart [--images 16]

With --apart the board has cores of its own, as a board on a cable has: kernels run on this machine's first
core, search and compilers on the others, and the next batch is made while one is measured. A kernel of one
image is so short here that compilers on one core cannot keep up; on --images 16 a trial takes about as long
as with one image on a board with a tenth of this core's speed.
"""

from __future__ import annotations

import argparse
import collections
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.c6 import c6, spread
from boards.board import load
from toolkit.errors import ToolkitError
from toolkit.measure.session import open_session
from toolkit.records import Records
from toolkit.tuning.algorithm import TuningOptions
from toolkit.tuning.on_board import BoardOptions, tune_on_board
from toolkit.tuning.progress import Budget, TuningResult
from toolkit.tuning.time_breakdown import Accounts


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tuned, and how."""

    trials: int
    batch: int
    images: int
    apart: bool


def run(setting: Setting, seed: int) -> TuningResult:
    """Tune once; print how trials failed, if any did."""
    board = load("host")
    target = board.target()
    tuning = TuningOptions(seed=seed, batch=setting.batch, overlap=setting.apart)
    options = BoardOptions(target=target, workers=len(target.cores), tuning=tuning)
    if setting.apart:
        ours = [core for core in target.cores if core != target.cores[0]]
        target = msgspec.structs.replace(target, cores=target.cores[:1])
        options = BoardOptions(target=target, workers=len(ours), tuning=tuning)
    with (
        tempfile.TemporaryDirectory(prefix="tfb-bench-") as folder,
        Records(Path(folder) / "records.db") as records,
        open_session(board, holder="benchmarks.tuning_throughput", wait_s=120.0) as session,
    ):
        if setting.apart:
            os.sched_setaffinity(0, ours)  # of this process and the compilers; the board's is running already
        (result,) = tune_on_board(
            [("C6", c6(setting.images))], board, session, records, Budget(setting.trials), options=options
        )
        failures = collections.Counter(record.error_kind for record in records if record.error_kind)
        if failures:
            print("failures:", ", ".join(f"{count} {kind}" for kind, count in failures.items()))
    return result


def transfer_share(accounts: Accounts) -> float:
    """Part of the time in which the board was waited for, but not busy."""
    return (accounts.measure_s - accounts.device_s) / accounts.wall_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rate, busy share and what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=1, help="images in a batch of the operator")
    parser.add_argument("--apart", action="store_true", help="kernels on one core, everything else on others")
    asked = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    if asked.apart and len(cores) < 2:
        parser.error("--apart needs two cores, this process may use one")
    where = f"kernels on core {cores[0]}, the rest on others" if asked.apart else f"{len(cores)} cores"
    print(f"C6, {asked.trials} trials a run, {where}, load before {os.getloadavg()[0]:.1f}")
    setting = Setting(asked.trials, asked.batch, asked.images, asked.apart)
    try:
        results = []
        for seed in range(asked.runs):
            os.sched_setaffinity(0, cores)
            results.append(run(setting, seed))
    except ToolkitError as error:
        parser.exit(error.exit_code, f"{error}\n")
    print(spread("measured trials", [r.measured / r.wall_s for r in results], "trials/s"))
    accounts = [r.accounts for r in results]
    print(spread("board busy", [100 * a.busy_share for a in accounts], "% of time"))
    print(spread("board idle", [100 * a.idle_share for a in accounts], "% of time"))
    print(spread("waiting for the compiler", [100 * a.compile_share for a in accounts], "% of time"))
    print(spread("search overhead", [100 * a.overhead_share for a in accounts], "% of time"))
    print(spread("  proposing alone", [100 * a.propose_s / a.wall_s for a in accounts], "% of time"))
    print(spread("  the way to the board", [100 * transfer_share(a) for a in accounts], "% of time"))
    print(spread("default schedule", [r.default_gflops for r in results], "GFLOP/s"))
    print(spread("best schedule", [r.best_gflops for r in results], "GFLOP/s"))


if __name__ == "__main__":
    main()
