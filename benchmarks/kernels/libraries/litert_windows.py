"""Convolutions and poolings of any number of dimensions as LiteRT's operators, which have two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels.libraries.litert_values import LiteRtValues, Value
from benchmarks.kernels.libraries.network_steps import Step
from benchmarks.kernels.workloads import Shape

NEVER_NEGATIVE = ("Relu", "Clip", "Sigmoid")
LOWEST = float(np.finfo(np.float32).min)
LEAST = -128  # the integer of 0 where nothing is negative


@dataclass(frozen=True, slots=True)
class Window:
    """A window that moves over an image [batch, height, width, channels]; `pads` as ONNX orders them."""

    data: Shape
    kernel: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[int]

    @property
    def output(self) -> tuple[int, int]:
        """Height and width of the result."""
        height, width = (
            (self.data[1 + axis] + self.pads[axis] + self.pads[axis + 2] - self.kernel[axis])
            // self.strides[axis]
            + 1
            for axis in (0, 1)
        )
        return height, width

    @property
    def same(self) -> bool:
        """Whether the padding is what TensorFlow's SAME means."""
        for axis in (0, 1):
            output = -(-self.data[1 + axis] // self.strides[axis])
            total = max(0, (output - 1) * self.strides[axis] + self.kernel[axis] - self.data[1 + axis])
            found = (self.output[axis], self.pads[axis], self.pads[axis + 2])
            if found != (output, total // 2, total - total // 2):
                return False
        return True


def conv(net: LiteRtValues, step: Step) -> None:
    """A convolution. One over several frames must be flat (1, k, k) or deep (k, 1, 1): on frames side by side
    in the batch, or on the pixels of each frame as one row, either is one of two dimensions.

    Raises:
        ValueError: its kernel is neither.
    """
    weight, of = net.constants[step.inputs[1]], step.attributes
    data = net.value(step.inputs[0], last=True, integers=net.on_integers(step))
    rank = weight.ndim - 2
    kernel, strides = list(weight.shape[2:]), list(of["strides"])
    pads = list(of.get("pads", [0] * 2 * rank))
    if rank == 2:
        _conv2d(net, step, data, (kernel, strides, pads))
        return
    if rank == 1:
        raise ValueError(f"{step.output}: expected a convolution of images or frames")
    _, channels, count, height, width = data.shape
    if kernel[1:] == [1, 1] and strides[1:] == [1, 1] and not any((*pads[1:3], *pads[4:])):
        rows = net.reshaped(data, Value((1, channels, count, height * width), True))
        _conv2d(net, step, rows, ([kernel[0], 1], [strides[0], 1], [pads[0], 0, pads[3], 0]))
    elif kernel[0] == 1 and not pads[0] and not pads[3]:
        if strides[0] > 1:
            data = _every(net, data, strides[0])
            count = data.shape[2]
        images = net.reshaped(data, Value((count, channels, height, width), True))
        _conv2d(net, step, images, (kernel[1:], strides[1:], [*pads[1:3], *pads[4:]]))
    else:
        raise ValueError(f"{step.output}: expected a flat or a deep kernel, found {kernel}")


def _every(net: LiteRtValues, data: Value, stride: int) -> Value:
    """Every so many frames."""
    batch, channels, count, height, width = data.shape
    ends = [[0] * 5, list(data.stored), [1, stride, 1, 1, 1]]
    after = Value((batch, channels, -(-count // stride), height, width), True)
    return net.add(
        "STRIDED_SLICE", net.options("StridedSlice"), [data.place, *map(net.integers, ends)], after
    )


def _conv2d(
    net: LiteRtValues, step: Step, data: Value, moved: tuple[list[int], list[int], list[int]]
) -> None:
    """On an image that is the data in another shape; the result gets the step's shape."""
    weight, groups = net.constants[step.inputs[1]], step.attributes.get("group", 1)
    kernel, strides, pads = moved
    bias = net.constants[step.inputs[2]] if len(step.inputs) > 2 else np.zeros(len(weight), np.float32)
    taps = weight.reshape(len(weight), weight.shape[1], *kernel).transpose(0, 2, 3, 1)
    depthwise = groups > 1 and weight.shape[1] == 1
    if depthwise:
        taps = taps.transpose(3, 1, 2, 0)
    own: dict[str, int] = {"depthMultiplier": len(weight) // groups} if depthwise else {}
    name = "DepthwiseConv2D" if depthwise else "Conv2D"
    options = net.options(name, dilationHFactor=1, dilationWFactor=1, **own)
    window = Window(data.stored, kernel, strides, pads)
    place = _padded(net, window, options, data, 0.0)
    integers = net.on_integers(step)
    operands = [
        place,
        net.taps(step.inputs[1], taps, integers=integers),
        net.bias(bias, data, step.inputs[1], integers=integers),
    ]
    code = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    output = Value((data.shape[0], len(weight), *window.output), True)
    net.finish(step, code, options, operands, last=True, computed=output, integers=integers)


def _padded(net: LiteRtValues, window: Window, options: Any, data: Value, filler: float) -> int:
    """Set stride and padding of a window; the place of its data, padded where SAME is something else."""
    place, quantization = data.place, data.quantization
    options.strideH, options.strideW = window.strides
    options.padding = net.model.schema.Padding.SAME if window.same else net.model.schema.Padding.VALID
    if window.same or not any(window.pads):
        return place
    top, left, bottom, right = window.pads
    batch, height, width, channels = window.data
    operands = [place, net.integers([[0, 0], [top, bottom], [left, right], [0, 0]])]
    padded = (batch, height + top + bottom, width + left + right, channels)
    if filler:
        around = np.full(1, filler, np.float32)
        if quantization:
            around = quantization.integers(around)
        operands.append(net.model.constant(around, quantization))
        return net.model.operator("PADV2", net.options("PadV2"), operands, padded, quantization)
    return net.model.operator("PAD", net.options("Pad"), operands, padded, quantization)


def max_pool(net: LiteRtValues, step: Step) -> None:
    """A pooling; zeros are as good as the lowest number around data that is never negative, and faster."""
    of, integers = step.attributes, net.on_integers(step)
    data = net.value(step.inputs[0], last=True, integers=integers)
    maker = net.makers.get(step.inputs[0])
    positive = maker is not None and maker.operator in NEVER_NEGATIVE
    if data.quantization is not None:
        positive = data.quantization.zero == LEAST
    window = Window(data.stored, of["kernel_shape"], of["strides"], of.get("pads", [0] * 4))
    height, width = of["kernel_shape"]
    options = net.options("Pool2D", filterHeight=height, filterWidth=width)
    place = _padded(net, window, options, data, 0.0 if positive else LOWEST)
    same = Value(net.shape(step.output), True, quantization=data.quantization)
    net.finish(step, "MAX_POOL_2D", options, [place], last=True, computed=same, integers=integers)


def transposed(net: LiteRtValues, step: Step) -> None:
    """A transposed convolution.

    Raises:
        ValueError: its padding is neither none nor SAME.
    """
    weight, of = net.constants[step.inputs[1]], step.attributes
    bias = net.constants[step.inputs[2]] if len(step.inputs) > 2 else np.zeros(weight.shape[1], np.float32)
    data, output = net.value(step.inputs[0], last=True), Value(net.shape(step.output), True).stored
    pads = of.get("pads", [0] * 4)
    window = Window(output, weight.shape[2:], of["strides"], pads)
    if any(pads) and not window.same:
        raise ValueError(f"{step.output}: expected padding like SAME, found {pads}")
    height, width = of["strides"]
    options = net.options("TransposeConv", strideH=height, strideW=width)
    padding = net.model.schema.Padding
    options.padding = padding.SAME if any(pads) else padding.VALID
    operands = [
        net.integers(output), net.floats(weight.transpose(1, 2, 3, 0)), data.place, net.floats(bias)
    ]  # fmt: skip
    net.finish(step, "TRANSPOSE_CONV", options, operands, last=True)


def resize(net: LiteRtValues, step: Step) -> None:
    """The nearest pixel.

    Raises:
        ValueError: it is another mode.
    """
    if step.attributes.get("mode") != b"nearest":
        raise ValueError(f"{step.output}: expected the nearest pixel, found {step.attributes}")
    integers = net.on_integers(step)
    data = net.value(step.inputs[0], last=True, integers=integers)
    operands = [data.place, net.integers(net.shape(step.output)[2:])]
    options, code = net.options("ResizeNearestNeighbor"), "RESIZE_NEAREST_NEIGHBOR"
    same = Value(net.shape(step.output), True, quantization=data.quantization)
    net.finish(step, code, options, operands, last=True, computed=same, integers=integers)
