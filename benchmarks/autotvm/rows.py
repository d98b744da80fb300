"""Rows of AutoTVM's logs: a workload, the knobs of the fastest program that was found for it, its seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.operators import Convolution, Form
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import bias_add

MALI_FILE = Path(__file__).with_name("mali.json")
FORMAT = 1
FAMILIES = {
    "conv2d_nchw_spatial_pack.mali": "conv",
    "conv2d_nchw_winograd.mali": "winograd",
    "depthwise_conv2d_nchw.mali": "depthwise",
    "dense.mali": "dense",
}

Shape = tuple[int, ...]
Knobs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One workload. `shapes` and `arguments` are AutoTVM's: images NCHW, weights OIHW, dense [n, k]."""

    template: str  # such as conv2d_nchw_spatial_pack.mali
    shapes: tuple[Shape, ...]
    arguments: tuple[Any, ...]  # strides, padding, dilation, dtype
    seconds: float
    knobs: Knobs

    @property
    def text(self) -> str:
        """For people: depthwise 14x14x512 3x3/2 512."""
        data, weight = self.shapes[:2]
        if self.family == "dense":
            return f"dense {data[1]} {weight[0]}" + (" + bias" if len(self.shapes) > 2 else "")
        strides = self.arguments[0]
        kernel = f"{weight[2]}x{weight[3]}/{strides[0]}"
        return f"{self.family} {data[2]}x{data[3]}x{data[1]} {kernel} {weight[0]}"

    @property
    def family(self) -> str:
        """conv, winograd, depthwise or dense."""
        return FAMILIES[self.template]


def rows(path: Path = MALI_FILE) -> list[Row]:
    """The rows of a file, in its order.

    Raises:
        ValueError: the file has another format.
    """
    content = json.loads(path.read_text())
    if content.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}, found {content.get('format')!r}")
    return [row(item) for item in content["rows"]]


def row(item: dict[str, Any]) -> Row:
    """One row as the file has it."""
    shapes = tuple(tuple(map(int, shape.split("x"))) for shape in item["shapes"])
    return Row(item["template"], shapes, tuple(item["arguments"]), item["seconds"], item["knobs"])


def operator(row: Row) -> Operator:
    """The workload as an operator of ours: images NHWC, weights HWIO, dense [k, n]."""
    if row.family == "dense":
        return _dense(row.shapes)
    (_, channels, height, width), (outputs, _, kernel_h, kernel_w) = row.shapes[:2]
    strides, pads, dilations = map(tuple, row.arguments[:3])
    form: Form = "depthwise" if row.family == "depthwise" else "conv2d"
    window = ((kernel_h, kernel_w), strides, pads[:2])
    if pads[:2] != pads[2:] or set(dilations) != {1}:
        raise ValueError(f"{row.text}: expected equal padding on both sides and no dilation")
    layer = Convolution(form, (height, width), channels, outputs, *window)
    return layer.operator(row.family, ("data", "weight", "y"))


def _dense(shapes: Sequence[Shape]) -> Operator:
    (rows, inner), (columns, _) = shapes[:2]
    data, weight = placeholder((rows, inner), "data"), placeholder((inner, columns), "weight")
    output = dense(data, weight, name="y")
    if len(shapes) == 2:
        return Operator("dense", (data, weight), output, constants=frozenset({1}))
    bias = placeholder((columns,), "bias")
    return Operator("dense", (data, weight, bias), bias_add(output, bias, "z"), constants=frozenset({1, 2}))
