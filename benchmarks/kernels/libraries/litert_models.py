"""A workload as a LiteRT (TensorFlow Lite) model of one operator. NHWC; needs the package's own schema.

Padding is TensorFlow's SAME: a convolution of stride 2 has its odd row on the other side. That is the same
work on shifted data, so `comparable` is false there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels.libraries.litert_flatbuffer import FlatModel
from benchmarks.kernels.workloads import Array, Image, Product, Shape, Workload


@dataclass(frozen=True, slots=True)
class LiteRtModel:
    """The flatbuffer, the arrays of its inputs in order, and whether its output is the workload's."""

    content: bytes
    inputs: tuple[Array, ...]
    comparable: bool


Operands = Sequence[tuple[Array, bool]]  # in the order of the operator: array, is it constant


def litert_model(workload: Workload, left: Array, right: Array) -> LiteRtModel:
    """The model of a workload with operands in the layouts of workloads.py."""
    model, of = FlatModel(), workload.of
    if isinstance(of, Image):
        code, options, operands = _image(model, of, left, right)
        output: Shape = (1, of.output_size, of.output_size, of.outputs)
    else:
        code, options, operands = _product(model, of, left, right)
        output = of.shapes[2]
    places = [
        model.constant(array) if constant else model.variable(array.shape) for array, constant in operands
    ]
    inputs = [
        (place, array) for place, (array, constant) in zip(places, operands, strict=True) if not constant
    ]
    content = model.finished([place for place, _ in inputs], model.operator(code, options, places, output))
    shifted = isinstance(of, Image) and of.family != "transposed" and of.stride > 1
    return LiteRtModel(content, tuple(array for _, array in inputs), not shifted)


def _image(model: FlatModel, of: Image, left: Array, right: Array) -> tuple[str, Any, Operands]:
    data, bias = np.ascontiguousarray(left.transpose(0, 2, 3, 1)), np.zeros(of.outputs, np.float32)
    window = {"padding": model.schema.Padding.SAME, "strideH": of.stride, "strideW": of.stride}
    if of.family == "transposed":
        shape = np.array((1, of.output_size, of.output_size, of.outputs), np.int32)
        operands = [(shape, True), (right.transpose(1, 2, 3, 0), True), (data, False)]
        return "TRANSPOSE_CONV", model.options("TransposeConv", **window), operands
    window |= {"dilationHFactor": 1, "dilationWFactor": 1}
    if of.family == "depthwise":
        operands = [(data, False), (right.transpose(1, 2, 3, 0), True), (bias, True)]
        return "DEPTHWISE_CONV_2D", model.options("DepthwiseConv2D", depthMultiplier=1, **window), operands
    operands = [(data, False), (right.transpose(0, 2, 3, 1), True), (bias, True)]
    return "CONV_2D", model.options("Conv2D", **window), operands


def _product(model: FlatModel, of: Product, left: Array, right: Array) -> tuple[str, Any, Operands]:
    if of.family == "dense":
        operands = [(left, False), (right.T, True), (np.zeros(of.columns, np.float32), True)]
        return "FULLY_CONNECTED", model.options("FullyConnected"), operands
    return "BATCH_MATMUL", model.options("BatchMatMul"), [(left, False), (right, False)]
