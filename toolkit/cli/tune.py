"""toolkit tune, also installed as tune-for-board."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click
from msgspec.structs import replace

import toolkit
from toolkit.cli.answers import (
    answer,
    answering,
    board_option,
    board_to_run,
    columns,
    constant_option,
    duration,
    say,
    shape,
    target_option,
    trust_option,
    wait_option,
    wide_option,
)
from toolkit.cost_model.names import COST_MODELS, DEFAULT
from toolkit.explore.names import FIRST, PRESET_NAMES, TUNERS
from toolkit.features.names import KINDS
from toolkit.reuse.names import Hops

if TYPE_CHECKING:
    from toolkit import TuneOptions, TuneReport

REUSE = "reuse"
BRIDGES: Hops = "one-hop"
AS_GIVEN: Final = (
    "target", "trials", "total", "seconds", "bridges", "output", "counter", "winograd", "precision", "wait_s",
)  # fmt: skip
"""The options of the command that are fields of TuneOptions as they are."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@board_option
@target_option
@click.option("--trials", type=click.IntRange(min=1), help="Measurements for each operator.  [default: 64]")
@click.option("--total-trials", "total", type=click.IntRange(min=1),
              help="Instead: for all operators together, given out where the model gets faster.")  # fmt: skip
@click.option("--budget", "seconds", type=duration, metavar="TIME",
              help="Instead: time for the whole command, e.g. 20m; it prints a plan first.")  # fmt: skip
@click.option("--early-stop", is_flag=True, help="No more trials for operators that gain less than 1 %.")
@click.option(
    "--dry-run", is_flag=True, help="Print the plan, by measured seconds per trial, and do no more."
)
@click.option("--tuner", type=click.Choice((*TUNERS, REUSE)), default=TUNERS[0], show_default=True,
              help="reuse: begin with programs tuned for similar operators, search the others.")  # fmt: skip
@click.option("--bridges", type=click.Choice(get_args(Hops)), default=BRIDGES, show_default=True,
              help="For --tuner reuse: further operators that may be tuned only to be reused.")  # fmt: skip
@click.option("--cost-model", type=click.Choice(COST_MODELS), default=DEFAULT, show_default=True)
@click.option("--features", type=click.Choice(KINDS),
              help="What the cost model reads of a program.  [default: what suits it]")  # fmt: skip
@click.option("--first", type=click.Choice(FIRST), default=FIRST[0], show_default=True,
              help="Annealing on a CPU begins around the untuned program, or at random.")  # fmt: skip
@click.option("--prior", type=click.Path(path_type=Path), metavar="FILE|NAME",
              help="A model of `toolkit model train` or `list` to begin with, for annealing.")  # fmt: skip
@click.option("--preset", type=click.Choice(PRESET_NAMES), default=PRESET_NAMES[0], show_default=True,
              help="Annealing: wide populations, or the paper's 128 chains of 500 steps.")  # fmt: skip
@click.option("--alpha", type=click.FloatRange(min=0), help="Weight of diversity in a batch.")
@click.option("--lambda", "spare", type=click.FloatRange(min=1),
              help="Candidates a batch is chosen from, in batches.")  # fmt: skip
@click.option("--epsilon", type=click.FloatRange(0, 1), help="Random share of a batch.")
@click.option("--records", type=click.Path(path_type=Path), help="Store of measurements; made when missing.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--shape", "shapes", type=shape, multiple=True, metavar="NAME=1,3,224,224",
              help="Shape of an input that the model leaves open; may be repeated.")  # fmt: skip
@constant_option
@click.option("--coverage", type=click.FloatRange(0, 100), default=0.0, metavar="PERCENT",
              help="Fail (exit code 5) when fewer of the operators end with a measured kernel.")  # fmt: skip
@click.option("--workers", type=click.IntRange(min=1), help="Compiler processes.  [default: one a core]")
@click.option("--winograd/--no-winograd", default=True,
              help="Try Winograd's algorithms for convolutions too.  [default: winograd]")  # fmt: skip
@click.option("--precision", type=click.Choice(("file", "fastest")), default="file",
              show_default=True,
              help="fastest: compute quantized layers in floats where that is faster.")  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The bundle.  [default: MODEL-BOARD.tfb]"
)
@click.option("--counter", type=click.IntRange(0, (1 << 53) - 1), metavar="N",
              help="A board takes no bundle with a lower one.  [default: seconds since 1970]")  # fmt: skip
@wait_option
@wide_option
@trust_option
@answering
def tune(**given: Any) -> None:
    """Tune the ONNX model MODEL for a board by measuring on it, and write a signed bundle.

    Every measurement is stored at once. Ctrl-C loses nothing: the same command continues where it stopped.
    """
    started_s = time.monotonic()
    options = tune_options(given)
    board = board_to_run(given["board_name"])
    if given["dry_run"]:
        with toolkit.TuneDisplay() as display:
            plan = toolkit.plan_tuning(given["model"], board, options, display)
        answer("plan", plan, toolkit.plan_table(plan, columns()), as_json=given["as_json"])
        return
    with toolkit.TuneDisplay() as display:
        tune_model = toolkit.tune  # loads what the work takes
        options = replace(options, spent_s=time.monotonic() - started_s)
        report = tune_model(given["model"], board, options, display)
    report = with_page(report)
    answer("tune", report, toolkit.tune_table(report, columns()), as_json=given["as_json"])
    say(f"to put it on the board: flash {report.bundle} --board {given['board_name']}")


def with_page(report: TuneReport) -> TuneReport:
    """The report with the page that is written beside the bundle; without one the job has succeeded, too."""
    try:
        if report.job is None:
            return report
        page = toolkit.page_beside(report.bundle)
        return replace(report, page=toolkit.write_job_page(toolkit.read_job(report.job), page))
    except toolkit.ToolkitError as error:
        say(f"no page: {error}")
        return report


def tune_options(given: dict[str, Any]) -> TuneOptions:
    """The options of the function behind the command."""
    if sum(given[name] is not None for name in ("trials", "total", "seconds")) > 1:
        raise click.UsageError("--trials, --total-trials and --budget exclude each other: give one of them")
    if given["precision"] == "fastest" and (given["total"] or given["seconds"] or given["tuner"] == REUSE):
        raise click.UsageError(
            "--precision fastest tunes by --trials: leave other budgets and --tuner reuse out"
        )
    reuse = given["tuner"] == REUSE
    if reuse and given["total"] is not None:
        raise click.UsageError("--tuner reuse decides about trials itself: give --trials or --budget")
    if unread := _unread(given):
        raise click.UsageError(f"--tuner {given['tuner']} reads no {', '.join(unread)}: leave that out")
    search = toolkit.SearchOptions(
        tuner=TUNERS[0] if reuse else given["tuner"],
        cost_model=given["cost_model"],
        features=given["features"] or "",
        prior=given["prior"],
        first=given["first"],
        annealing=toolkit.annealing_options(
            given["preset"], alpha=given["alpha"], spare=given["spare"], epsilon=given["epsilon"]
        ),
    )
    return toolkit.TuneOptions(
        **{name: given[name] for name in AS_GIVEN},
        tuning=toolkit.TuningOptions(search=search, seed=given["seed"], early_stop=given["early_stop"]),
        reuse=reuse,
        shapes=dict(given["shapes"]),
        constants=dict(given["constants"]),
        records=given["records"] or toolkit.DEFAULT_RECORDS,
        coverage=given["coverage"] / 100,
        workers=given["workers"] or os.cpu_count() or 1,
        command=("toolkit", "tune", *_typed()),
    )


def _typed() -> list[str]:
    """The arguments behind the name of the command."""
    return sys.argv[2:] if sys.argv[1:2] == ["tune"] else sys.argv[1:]


def _unread(given: dict[str, Any]) -> list[str]:
    """The options that were given and that the tuner does not read; reuse searches by annealing."""
    of_annealing = {
        "--cost-model": given["cost_model"] != DEFAULT,
        "--features": given["features"] is not None,
        "--first": given["first"] != FIRST[0],
        "--prior": given["prior"] is not None,
        "--preset": given["preset"] != PRESET_NAMES[0],
        "--alpha": given["alpha"] is not None,
        "--lambda": given["spare"] is not None,
        "--epsilon": given["epsilon"] is not None,
    }
    unread = (
        [] if given["tuner"] in (TUNERS[0], REUSE) else [name for name in of_annealing if of_annealing[name]]
    )
    if given["tuner"] != REUSE and given["bridges"] != BRIDGES:
        unread.append("--bridges")
    return unread
