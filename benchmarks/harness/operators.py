"""Operators from shapes: what a layer of a published network computes, in the expression language."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cross.expression.families.conv import dense_conv, depthwise_conv, grouped_conv
from cross.expression.families.dense import batch_matmul
from cross.expression.families.transposed import Transposed, phases, transposed_conv
from cross.expression.families.window import Window
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor, placeholder

Form = Literal["conv1d", "conv2d", "conv3d", "depthwise", "grouped", "transposed", "batch_matmul"]
Names = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Convolution:
    """`image`: extents of the input without padding; `pads`: of each dimension, on both sides."""

    form: Form
    image: tuple[int, ...]
    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    batch: int = 1
    groups: int = 1

    def operator(self, name: str = "", names: Names = ("X", "W", "Y")) -> Operator:
        """Data channels last, constant weights; `names` of the data, the weights and the output."""
        data, weight, output = (self._transposed if self.form == "transposed" else self._windowed)(names)
        return Operator(name or self.form, (data, weight), output, constants=frozenset({1}))

    def _windowed(self, names: Names) -> tuple[Tensor, Tensor, Tensor]:
        window = Window(self.strides, self.pads * 2, (1,) * len(self.kernel))
        channels: tuple[int, ...] = (self.inputs,)
        shape: tuple[int, ...] = (*self.kernel, self.inputs, self.outputs)
        if self.form == "depthwise":
            shape = (*self.kernel, self.inputs)
        elif self.form == "grouped":
            channels = (self.groups, self.inputs // self.groups)
            shape = (self.groups, *self.kernel, channels[1], self.outputs // self.groups)
        data = placeholder((self.batch, *self.image, *channels), names[0])
        weight = placeholder(shape, names[1])
        forms = {"depthwise": depthwise_conv, "grouped": grouped_conv}
        return data, weight, forms.get(self.form, dense_conv)(data, weight, window, name=names[2])

    def _transposed(self, names: Names) -> tuple[Tensor, Tensor, Tensor]:
        windows = zip(self.image, self.kernel, self.strides, self.pads, strict=True)
        dimensions = [
            phases(extent, Transposed(kernel, stride, (pad, pad))) for extent, kernel, stride, pad in windows
        ]
        taps = tuple(dimension.taps for dimension in dimensions)
        assert math.prod(taps) * math.prod(self.strides) >= math.prod(self.kernel)
        data = placeholder((self.batch, *self.image, self.inputs), names[0])
        weight = placeholder((*self.strides, *taps, self.inputs, self.outputs), names[1])
        return data, weight, transposed_conv(data, weight, dimensions, name=names[2])


@dataclass(frozen=True, slots=True)
class Product:
    """[batch, rows, inner] @ [batch, inner, columns]; both sides vary, as in ETO's batch matmuls."""

    batch: int
    rows: int
    columns: int
    inner: int
    form: Form = "batch_matmul"

    def operator(self) -> Operator:
        left = placeholder((self.batch, self.rows, self.inner), "A")
        right = placeholder((self.batch, self.inner, self.columns), "B")
        return Operator(self.form, (left, right), batch_matmul(left, right, name="Y"))


Layer = Convolution | Product
