"""toolkit run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import toolkit
from toolkit.cli.answers import (
    answer,
    answering,
    board_option,
    board_to_run,
    duration,
    say,
    trust_option,
    wait_option,
)


@click.command()
@click.argument("inputs", nargs=-1, metavar="[NAME=]FILE.npy ...")
@board_option
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("."),
              help="Folder for one .npy file per output.  [default: here]")  # fmt: skip
@click.option("--target", default="", help="Variant; default: the first that the board has a device for.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs to time.")
@click.option("--timeout", "test_timeout_s", type=duration, default="120s", metavar="TIME", show_default=True,
              help="Longest that all runs may take.")  # fmt: skip
@wait_option
@trust_option
@answering
def run(
    *, inputs: tuple[str, ...], board_name: str, output: Path, repeat: int, as_json: bool, **options: Any
) -> None:
    """Run the model that is installed on a board on arrays of your own."""
    board = board_to_run(board_name)
    arrays = {}
    for text in inputs:
        name, _, path = text.rpartition("=")
        if name in arrays:
            which = f"the input {name}" if name else "the only input"
            raise click.UsageError(f"{which} is given twice: name each one once, as NAME=FILE.npy")
        arrays[name] = toolkit.read_array(Path(path))
    say(f"running the model on {board.name}")
    result = toolkit.run_installed(board, arrays, repeat=repeat, options=toolkit.FlashOptions(**options))
    paths = toolkit.write_arrays(result.outputs, output)
    mark = " (emulated)" if result.emulated else ""
    lines = [str(path) for path in paths]
    lines.append(f"{toolkit.time_text(min(result.seconds))}{mark}, the fastest of {len(result.seconds)} runs")
    lines.append(result.variant.text)
    content = {
        "bundle_id": result.bundle_id,
        "emulated": result.emulated,
        "outputs": dict(zip(result.outputs, paths, strict=True)),
        "seconds": result.seconds,
        "variant": result.variant,
    }
    answer("run", content, "\n".join(lines), as_json=as_json)
