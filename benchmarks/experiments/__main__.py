"""The studies of the AutoTVM paper on this machine: what learns best, and whether it helps.

    python -m benchmarks.experiments run                 every study on the replay tables, and one page
    python -m benchmarks.experiments run --quick         the smallest table, three seeds: for CI
    python -m benchmarks.experiments run --live          first measure live what is missing
    python -m benchmarks.experiments collect --trials 400 --seeds 1    live measurements only

Everything that is finished stays in the folder --work: the same command goes on where it was stopped. `run`
writes experiments.html (one self-contained page) and experiments.json into the folder --output. The same
measurements, seeds and code give the same bytes of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.again import time_again
from benchmarks.experiments.cells import finish
from benchmarks.experiments.collect import OPERATORS, collect
from benchmarks.experiments.live import live_results
from benchmarks.experiments.page import page
from benchmarks.experiments.results import cells_of, study_results
from benchmarks.experiments.studies import QUICK, STUDIES, possible
from benchmarks.experiments.zero_shot import zero_shot
from benchmarks.reuse.results import pair_results
from benchmarks.reuse.set_table import set_outcomes
from boards.errors import BoardError
from toolkit.cost_model.choose import COST_MODELS
from toolkit.errors import ToolkitError

RESULTS_VERSION: Final = 2
WORK: Final = Path("build/experiments")
REUSE: Final = Path("build/reuse")
SETS: Final = Path("build/reuse-sets")
QUICK_SEEDS: Final = 3
INTERRUPTED: Final = 130
SAID_EVERY_S: Final = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.command == "collect" or asked.live:
            operators = asked.operators or OPERATORS
            collect(asked.work, asked.live_trials, range(asked.live_seeds), operators=operators)
            time_again(asked.work, asked.live_trials)
        if asked.command == "run":
            results = run(asked)
            _write(results, asked.output or asked.work)
    except (ToolkitError, BoardError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted: what is finished is kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    return 0


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Finish the cells that are missing; the results of all studies."""
    work: Path = asked.work
    chosen = [
        replace(study, trials=asked.trials or study.trials)
        for study in (QUICK if asked.quick else STUDIES)
        if not asked.studies or study.name in asked.studies
    ]
    seeds = asked.seeds or (QUICK_SEEDS if asked.quick else 10)
    studies = [possible(study, work, tuple(asked.without)) for study in chosen]
    cells = [cell for study, _ in studies for cell in cells_of(study, seeds)]
    finish(cells, work, workers=asked.workers, progress=Progress())
    return {
        "version": RESULTS_VERSION,
        "about": _about(seeds, asked.quick),
        "live": live_results(work, asked.live_trials),
        "studies": [study_results(study, seeds, work, notes) for study, notes in studies],
        "reuse": {
            "pairs": pair_results(asked.reuse, asked.live_trials),
            "sets": set_outcomes(asked.reuse_sets, asked.reuse_trials or asked.live_trials),
        },
        "zero_shot": zero_shot(work, tuple(asked.without))
        if not asked.quick
        else {"rows": [], "notes": [], "top": 0},
    }


def _about(seeds: int, quick: bool) -> str:
    scope = "The short form for CI: the smallest table only. " if quick else ""
    return (
        f"{scope}The component and transfer studies of “Learning to Optimize Tensor Programs” (section 6), "
        f"{seeds} seeds each. Tables are reduced spaces of which every program was measured; pools are the "
        "programs that live tuning runs measured. A difference is claimed only where the 95 % bootstrap "
        "interval of the ratio, seed by seed, excludes 1; otherwise it is a tie. With this many comparisons "
        "some of the claimed differences will be chance."
    )


def _write(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("experiments.json", json.dumps(results, indent=1, sort_keys=True, allow_nan=False) + "\n"),
        ("experiments.html", page(results)),
    ):
        path = folder / name
        path.with_suffix(".part").write_text(text)
        os.replace(path.with_suffix(".part"), path)
        print(path)
    for study in results["studies"]:
        print(f"{study['figure']}, {study['title']}. {study['finding']}")


class Progress:
    """Lines on standard error: how many of the missing searches are done."""

    def __init__(self) -> None:
        self._begun_s = self._said_s = time.monotonic()

    def __call__(self, done: int, missing: int) -> None:
        now_s = time.monotonic()
        if 0 < done < missing and now_s - self._said_s < SAID_EVERY_S:
            return
        self._said_s = now_s
        left = (
            f", about {(now_s - self._begun_s) / done * (missing - done) / 60:.1f} min left" if done else ""
        )
        print(f"searches: {done}/{missing}{left}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run what is missing of the studies; write the page")
    running.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(item.name for item in STUDIES))
    running.add_argument("--quick", action="store_true", help="the smallest table and three seeds")
    running.add_argument("--live", action="store_true", help="collect what is missing first")
    running.add_argument("--seeds", type=int, help="searches of each method (default: 10, quick: 3)")
    running.add_argument("--trials", type=int, help="trials of each search (default: each study's own)")
    running.add_argument(
        "--without", nargs="+", default=[], metavar="MODEL", choices=COST_MODELS,
        help="cost models to leave out, such as treegru: without a GPU a search with it takes minutes",
    )  # fmt: skip
    running.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0))))
    running.add_argument("--output", type=Path, help="folder of the page (default: --work)")
    running.add_argument(
        "--reuse", type=Path, default=REUSE, help=f"what benchmarks.reuse measured (default: {REUSE})"
    )
    running.add_argument(
        "--reuse-sets", type=Path, default=SETS, help=f"the same of whole sets (default: {SETS})"
    )
    running.add_argument(
        "--reuse-trials",
        type=int,
        help="of the searches that sets are compared with (default: --live-trials)",
    )
    running.add_argument("--live-trials", type=int, default=400)
    running.add_argument("--live-seeds", type=int, default=1)
    collecting = commands.add_parser("collect", help="measure C1 to C12 live, for transfer and the goals")
    collecting.add_argument("--trials", dest="live_trials", type=int, default=400)
    collecting.add_argument("--seeds", dest="live_seeds", type=int, default=1)
    collecting.set_defaults(live=True)
    for command in (running, collecting):
        command.add_argument("--operators", nargs="+", choices=OPERATORS, help="to measure (default: all)")
        command.add_argument("--work", type=Path, default=WORK, help=f"finished work (default: {WORK})")
    return parser


if __name__ == "__main__":
    sys.exit(main())
