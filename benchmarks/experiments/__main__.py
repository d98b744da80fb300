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

import os
import sys
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
from benchmarks.harness.command import Asked, finished, program, subcommands
from benchmarks.harness.documents import write, write_text
from benchmarks.reuse.results import pair_results
from benchmarks.reuse.set_table import set_outcomes
from toolkit.cost_model.names import COST_MODELS

RESULTS_VERSION: Final = 2
WORK: Final = Path("build/experiments")
REUSE: Final = Path("build/reuse")
SETS: Final = Path("build/reuse-sets")
SEEDS, QUICK_SEEDS = 10, 3


def run(asked: Asked) -> None:
    """Measure live what is missing where that is asked for, finish the studies, and write the page."""
    if asked.live:
        measure(asked)
    results, folder = studied(asked), asked.output or asked.work
    write(results, folder / "experiments.json")
    write_text(page(results), folder / "experiments.html")
    print(folder / "experiments.json", folder / "experiments.html", sep="\n")
    for study in results["studies"]:
        print(f"{study['figure']}, {study['title']}. {study['finding']}")


def measure(asked: Asked) -> None:
    """Live tuning runs of what is missing, and their winners timed again."""
    collect(asked.work, asked.live_trials, range(asked.live_seeds), operators=asked.operators or OPERATORS)
    time_again(asked.work, asked.live_trials)


def studied(asked: Asked) -> dict[str, Any]:
    """Finish the cells that are missing; the results of all studies."""
    work: Path = asked.work
    without = tuple(asked.without)
    chosen = [
        replace(study, trials=asked.trials or study.trials)
        for study in (QUICK if asked.quick else STUDIES)
        if not asked.studies or study.name in asked.studies
    ]
    seeds = asked.seeds or (QUICK_SEEDS if asked.quick else SEEDS)
    studies = [possible(study, work, without) for study in chosen]
    finish([cell for study, _ in studies for cell in cells_of(study, seeds)], work, workers=asked.workers)
    nothing: dict[str, Any] = {"rows": [], "notes": [], "top": 0}
    return {
        "version": RESULTS_VERSION,
        "about": _about(seeds, asked.quick),
        "live": live_results(work, asked.live_trials),
        "studies": [study_results(study, seeds, work, notes) for study, notes in studies],
        "reuse": {
            "pairs": pair_results(asked.reuse, asked.live_trials),
            "sets": set_outcomes(asked.reuse_sets, asked.reuse_trials or asked.live_trials),
        },
        "zero_shot": nothing if asked.quick else zero_shot(work, without),
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("experiments", __doc__)
    command = subcommands(parser)
    running = command("run", run, "run what is missing of the studies; write the page")
    add = running.add_argument
    add("studies", nargs="*", metavar="STUDY", help=", ".join(item.name for item in STUDIES))
    add("--quick", action="store_true", help="the smallest table and three seeds")
    add("--live", action="store_true", help="collect what is missing first")
    add("--seeds", type=int, help=f"searches of each method (default: {SEEDS}, quick: {QUICK_SEEDS})")
    add("--trials", type=int, help="trials of each search (default: each study's own)")
    add(
        "--without", nargs="+", default=[], metavar="MODEL", choices=COST_MODELS,
        help="cost models to leave out, such as treegru: without a GPU a search with it takes minutes",
    )  # fmt: skip
    add("--workers", type=int, default=max(1, len(os.sched_getaffinity(0))))
    add("--output", type=Path, help="folder of the page (default: --work)")
    add("--reuse", type=Path, default=REUSE, help=f"what benchmarks.reuse measured (default: {REUSE})")
    add("--reuse-sets", type=Path, default=SETS, help=f"the same of whole sets (default: {SETS})")
    add("--reuse-trials", type=int, help="of searches that sets are compared with (default: --live-trials)")
    collecting = command("collect", measure, "measure C1 to C12 live, for transfer and the goals")
    for parent, prefix in ((running, "--live-"), (collecting, "--")):
        parent.add_argument(f"{prefix}trials", dest="live_trials", type=int, default=400)
        parent.add_argument(f"{prefix}seeds", dest="live_seeds", type=int, default=1)
        parent.add_argument("--operators", nargs="+", choices=OPERATORS, help="to measure (default: all)")
        parent.add_argument("--work", type=Path, default=WORK, help=f"finished work (default: {WORK})")
    return finished(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
