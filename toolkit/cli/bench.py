"""toolkit bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

import toolkit
from boards.files import write_file
from toolkit.cli.answers import (
    answer,
    answering,
    board_option,
    board_to_run,
    columns,
    constant_option,
    trust_option,
    wait_option,
    wide_option,
)

FILE: Final = click.Path(path_type=Path)


def numbers(text: str) -> tuple[int, ...]:
    """1,2,4 for an option of type `numbers`."""
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers: expected for example 1,2,4") from None


@click.command()
@board_option
@click.option("--bundle", type=FILE, metavar="FILE",
              help="A bundle, which is not installed.  [default: the installed one]")  # fmt: skip
@click.option("--target", default="", help="The bundle's variant for this target.  [default: its first]")
@click.option("--threads", type=numbers, default="", metavar="1,2,...",
              help="Measure the CPU's variant by these numbers of threads as well.")  # fmt: skip
@click.option("--against", default="", metavar="FILE|onnxruntime",
              help="Measure this bundle, or ONNX Runtime on this machine, in turn.")  # fmt: skip
@click.option("--model", type=FILE, default=None, metavar="FILE.onnx",
              help="What ONNX Runtime runs.")  # fmt: skip
@constant_option
@click.option("--csv", "csv_file", type=FILE, metavar="FILE", help="Write the table there as well.")
@click.option("--trace", "trace_file", type=FILE, metavar="FILE",
              help="Write one run there, layer by layer, for Perfetto or chrome://tracing.")  # fmt: skip
@wait_option
@trust_option
@wide_option
@answering
def bench(
    *, board_name: str, bundle: Path | None, csv_file: Path | None, trace_file: Path | None, as_json: bool,
    constants: tuple[tuple[str, tuple[float, ...]], ...], **given: Any,
) -> None:  # fmt: skip
    """Measure how fast a bundle runs on a board: percentiles, threads, memory, and beside another one.

    The bundle is checked on the board against its own data first. Without --bundle it is the installed one,
    of which nothing is uploaded.
    """
    options = toolkit.BenchOptions(**given, constants=dict(constants))
    board = board_to_run(board_name)
    report = toolkit.bench(bundle, board, options, toolkit.BenchDisplay(sys.stderr))
    if csv_file is not None:
        write_file(csv_file, toolkit.bench_csv(report).encode())
    if trace_file is not None:
        write_file(trace_file, toolkit.bench_trace(report).encode())
    answer("bench", toolkit.bench_content(report), toolkit.bench_text(report, columns()), as_json=as_json)
