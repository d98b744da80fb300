"""toolkit report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import toolkit
from toolkit.cli.answers import (
    answer,
    answering,
    board_option,
    columns,
    constant_option,
    say,
    shape,
    target_option,
    wide_option,
)
from toolkit.cli.records import records_option


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@board_option
@target_option
@click.option("--shape", "shapes", type=shape, multiple=True, metavar="NAME=1,3,224,224",
              help="Shape of an input that the model leaves open; may be repeated.")  # fmt: skip
@constant_option
@click.option("--winograd/--no-winograd", default=True,
              help="As for `tune`: its records are kept apart.  [default: winograd]")  # fmt: skip
@click.option("--html", "page", type=click.Path(path_type=Path), is_flag=False, flag_value=Path(),
              metavar="[FILE]", help="Write the page instead.  [default: MODEL-BOARD.html]")  # fmt: skip
@records_option
@wide_option
@answering
def report(
    *, model: Path, board_name: str, page: Path | None, store: Path, as_json: bool, **chosen: Any,
) -> None:  # fmt: skip
    """Show what the records know about each operator of MODEL on a board; measures nothing."""
    given = {name: dict(chosen[name]) for name in ("shapes", "constants")}
    target, winograd = (chosen[name] for name in ("target", "winograd"))
    board = toolkit.load_board(board_name, to_run=False)
    say(f"reading what the records know of {model}")
    with toolkit.Records(store, read_only=True) as opened:
        found = toolkit.recorded_model(model, board, opened, target=target, winograd=winograd, **given)
    operators = found.operators
    if page is not None:
        place = page if page.name else Path(f"{model.stem}-{board.name}.html")
        toolkit.write_job_page(toolkit.latest_job(found.job), place)
        answer("page", {"page": place}, str(place), as_json=as_json)
        return
    measured = board.target(target or None)
    text = toolkit.operator_table(
        operators, emulated=board.emulated, peak_gflops=measured.peak_gflops, width=columns()
    )
    if measured.is_pocl:
        text += f"\n\n{board.name}: {toolkit.NO_GPU}"
    spent = sum((item.spent for item in operators), toolkit.TimeBreakdown())
    if spent.wall_s:
        text += f"\n\n{toolkit.accounts_text(spent)}"
    content = {
        "board": board.name,
        "target": measured.name,
        "emulated": board.emulated,
        "pocl": measured.is_pocl,
        "operators": operators,
        "accounts": spent,
        "overhead_share": spent.overhead_share,
        "idle_share": spent.idle_share,
    }
    answer("report", content, text, as_json=as_json)
