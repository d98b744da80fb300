"""Measured trials per second of tuning C6 on this machine: search, compile, link, check and time.

Each run starts from nothing with its own seed and records file. The board is this machine, so compiling and
measuring take turns on its cores; the busy share is the part of the time in which a kernel was being checked
or timed.

    python -m benchmarks.tuning_throughput [--runs 3] [--trials 256]
"""

from __future__ import annotations

import argparse
import collections
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.c6 import c6, spread
from boards.board import load
from toolkit.errors import ToolkitError
from toolkit.jobs import BoardOptions, tune_on_board
from toolkit.measure.session import open_session
from toolkit.progress import Budget, TuningResult
from toolkit.records import Records
from toolkit.tuning import TuningOptions


def run(trials: int, seed: int, batch: int) -> TuningResult:
    """Tune once; print how trials failed, if any did."""
    board = load("host")
    options = BoardOptions(workers=len(board.target().cores), tuning=TuningOptions(seed=seed, batch=batch))
    with (
        tempfile.TemporaryDirectory(prefix="tfb-bench-") as folder,
        Records(Path(folder) / "records.db") as records,
        open_session(board, holder="benchmarks.tuning_throughput") as session,
    ):
        (result,) = tune_on_board([("C6", c6())], board, session, records, Budget(trials), options=options)
        failures = collections.Counter(record.error_kind for record in records if record.error_kind)
        if failures:
            print("failures:", ", ".join(f"{count} {kind}" for kind, count in failures.items()))
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print rate, busy share and what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    asked = parser.parse_args(arguments)
    print(f"C6, {asked.trials} trials a run, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}")
    try:
        results = [run(asked.trials, seed, asked.batch) for seed in range(asked.runs)]
    except ToolkitError as error:
        parser.exit(error.exit_code, f"{error}\n")
    print(spread("measured trials", [r.measured / r.wall_s for r in results], "trials/s"))
    accounts = [r.accounts for r in results]
    print(spread("board busy", [100 * a.busy_share for a in accounts], "% of time"))
    print(spread("board idle", [100 * a.idle_share for a in accounts], "% of time"))
    print(spread("waiting for the compiler", [100 * a.compile_share for a in accounts], "% of time"))
    print(spread("search overhead", [100 * a.overhead_share for a in accounts], "% of time"))
    print(spread("default schedule", [r.default_gflops for r in results], "GFLOP/s"))
    print(spread("best schedule", [r.best_gflops for r in results], "GFLOP/s"))


if __name__ == "__main__":
    main()
