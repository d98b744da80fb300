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


@dataclass(frozen=True, slots=True)
class _Operator:
    """What the flatbuffer says: operands in the order of the operator, each a constant or a graph input."""

    code: str
    options_type: str
    options: Any
    operands: Sequence[tuple[Array, bool]]  # array, is it constant
    output: Shape


def litert_model(workload: Workload, left: Array, right: Array) -> LiteRtModel:
    """The model of a workload with operands in the layouts of workloads.py."""
    model, of = FlatModel(), workload.of
    if isinstance(of, Image):
        operator = _image(model.schema, of, left, right)
    else:
        operator = _product(model.schema, of, left, right)
    places = [
        model.constant(array) if constant else model.variable(array.shape)
        for array, constant in operator.operands
    ]
    inputs = [
        (place, array)
        for place, (array, constant) in zip(places, operator.operands, strict=True)
        if not constant
    ]
    result = model.operator(operator.code, operator.options_type, operator.options, places, operator.output)
    content = model.finished([place for place, _ in inputs], result)
    shifted = isinstance(of, Image) and of.family != "transposed" and of.stride > 1
    return LiteRtModel(content, tuple(array for _, array in inputs), not shifted)


def _image(schema: Any, of: Image, left: Array, right: Array) -> _Operator:
    data = np.ascontiguousarray(left.transpose(0, 2, 3, 1))
    output = (1, of.output_size, of.output_size, of.outputs)
    bias = np.zeros(of.outputs, np.float32)
    if of.family == "transposed":
        options = schema.TransposeConvOptionsT()
        shape, weight = np.array(output, np.int32), right.transpose(1, 2, 3, 0)
        operands = [(shape, True), (weight, True), (data, False)]
        code, options_type = "TRANSPOSE_CONV", "TransposeConvOptions"
    elif of.family == "depthwise":
        options = schema.DepthwiseConv2DOptionsT()
        options.depthMultiplier = 1
        operands = [(data, False), (right.transpose(1, 2, 3, 0), True), (bias, True)]
        code, options_type = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
    else:
        options = schema.Conv2DOptionsT()
        operands = [(data, False), (right.transpose(0, 2, 3, 1), True), (bias, True)]
        code, options_type = "CONV_2D", "Conv2DOptions"
    options.padding, options.strideH, options.strideW = schema.Padding.SAME, of.stride, of.stride
    if of.family != "transposed":
        options.dilationHFactor = options.dilationWFactor = 1
    return _Operator(code, options_type, options, operands, output)


def _product(schema: Any, of: Product, left: Array, right: Array) -> _Operator:
    if of.family == "dense":
        bias = np.zeros(of.columns, np.float32)
        operands = [(left, False), (right.T, True), (bias, True)]
        options = schema.FullyConnectedOptionsT()
        return _Operator("FULLY_CONNECTED", "FullyConnectedOptions", options, operands, of.shapes[2])
    operands = [(left, False), (right, False)]
    return _Operator(
        "BATCH_MATMUL", "BatchMatMulOptions", schema.BatchMatMulOptionsT(), operands, of.shapes[2]
    )
