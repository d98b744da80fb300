"""toolkit quantize."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

import toolkit
from toolkit.cli.answers import answer, answering, columns, shape, wide_option

PERCENT: Final = click.FloatRange(0, 100)


def numbers(text: str) -> tuple[float, ...]:
    """0.485,0.456,0.406 for an option of type `numbers`."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no list of numbers: expected for example 0.5,0.5,0.5"
        ) from None


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), required=True, metavar="FOLDER",
              help="Samples: .npy files as the model takes them, or images.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
              help="The quantized model.  [default: MODEL-int8.onnx here]")  # fmt: skip
@click.option("--samples", type=click.IntRange(min=2), default=128, show_default=True,
              help="Use at most so many, evenly taken.")  # fmt: skip
@click.option("--held-out", type=PERCENT, default=20, show_default=True, metavar="PERCENT",
              help="Share of the samples to compare by instead of calibrating with.")  # fmt: skip
@click.option("--calibration", type=click.Choice(["minmax", "entropy", "percentile"]), default="minmax",
              show_default=True, help="How the range of a value is found.")  # fmt: skip
@click.option("--activations", type=click.Choice(["uint8", "int8"]), default="uint8", show_default=True)
@click.option("--per-tensor", is_flag=True, help="One scale for all weights of a layer, not one a channel.")
@click.option("--narrow", is_flag=True,
              help="Weights in -63 to 63: faster on cores without dot products (Cortex-A53).")  # fmt: skip
@click.option("--until-sqnr", "until_sqnr_db", type=float, metavar="DECIBELS",
              help="Leave layers in floats until the outputs are so clear of noise.")  # fmt: skip
@click.option("--until-agreement", type=PERCENT, metavar="PERCENT",
              help="Leave layers in floats until so many samples keep their class.")  # fmt: skip
@click.option("--mean", type=numbers, default="0", metavar="R,G,B", help="Of images of 0 to 1: subtracted.")
@click.option("--std", type=numbers, default="1", metavar="R,G,B", help="Of images of 0 to 1: divided by.")
@click.option("--shape", "shapes", type=shape, multiple=True, metavar="NAME=1,3,224,224",
              help="An input that the model leaves open; may be repeated.")  # fmt: skip
@wide_option
@answering
def quantize(
    *,
    model: Path,
    data: Path,
    output: Path | None,
    as_json: bool,
    until_agreement: float | None,
    **given: Any,
) -> None:
    """Turn a network of floats into one of 8-bit integers, calibrated on data.

    Says how much noise that adds, by layer, and how far the outputs agree on samples held out. Needs the
    extra `quantize`.
    """
    scheme = toolkit.Scheme(
        given["calibration"],
        given["activations"],
        per_channel=not given["per_tensor"],
        narrow=given["narrow"],
    )
    options = toolkit.QuantizeOptions(
        scheme=scheme,
        scale=toolkit.ImageScale(given["mean"], given["std"]),
        samples=given["samples"],
        held_out=given["held_out"] / 100,
        until_sqnr_db=given["until_sqnr_db"],
        until_agreement=None if until_agreement is None else until_agreement / 100,
        shapes=dict(given["shapes"]),
    )
    target = output or Path(f"{model.stem}-int8.onnx")
    display = toolkit.BenchDisplay(sys.stderr, "quantizing", "samples and layers")
    report = toolkit.quantize(model, data, target, options, display)
    answer("quantize", report, toolkit.quantize_text(report, columns()), as_json=as_json)
