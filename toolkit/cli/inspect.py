"""toolkit inspect."""

from __future__ import annotations

from pathlib import Path

import click

import toolkit
from toolkit.cli.answers import answer, answering, columns, wide_option
from toolkit.cli.records import records_option
from toolkit.inspection.names import SECTIONS


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--operator", "wanted", default="", metavar="OPERATOR",
              help="Its number in the list, a layer, the beginning of its key, or: slowest.")  # fmt: skip
@click.option("--board", "-b", "board_name", default="", metavar="BOARD",
              help="Needed for records; default for a bundle: the board that it was made for.")  # fmt: skip
@click.option("--target", default="", help="One of the board's targets.")
@click.option("--show", "sections", multiple=True, type=click.Choice(SECTIONS), default=SECTIONS,
              help="Only this section; may be repeated.  [default: all]")  # fmt: skip
@records_option
@wide_option
@answering
def inspect(
    *, file: Path, wanted: str, board_name: str, target: str, sections: tuple[str, ...],
    store: Path, as_json: bool,
) -> None:  # fmt: skip
    """Say why a kernel of the bundle or records FILE is as fast as it is; runs nothing.

    Without --operator: the list of kernels, where there are several.
    """
    board = toolkit.load_board(board_name, to_run=False) if board_name else None
    found = toolkit.found_kernels(file, store, toolkit.trusted_keys(), board=board, target=target)
    if not wanted and len(found) != 1:
        content = [{"operator": item.name, "operator_key": item.operator_key, "tuned": item.tuned,
                    "seconds": item.seconds, "layers": item.layers} for item in found]  # fmt: skip
        text = toolkit.kernel_table(found, columns()) if found else f"{file} has no kernel for this board"
        answer("inspect-list", {"kernels": content}, text, as_json=as_json)
        return
    inspection = toolkit.inspected(toolkit.chosen_kernel(found, wanted) if wanted else found[0])
    text = toolkit.inspection_text(inspection, sections, columns())
    answer("inspect", toolkit.inspection_content(inspection), text, as_json=as_json, folded=False)
