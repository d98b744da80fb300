"""A workload as a LiteRT (TensorFlow Lite) model of one operator. NHWC; needs the package's own schema.

Padding is TensorFlow's SAME: a convolution of stride 2 has its odd row on the other side. That is the same
work on shifted data, so `comparable` is false there.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
    of = workload.of
    operator = _image(schema, of, left, right) if isinstance(of, Image) else _product(schema, of, left, right)
    variables = tuple(array for array, constant in operator.operands if not constant)
    shifted = isinstance(of, Image) and of.family != "transposed" and of.stride > 1
    return LiteRtModel(_flatbuffer(schema, operator), variables, not shifted)


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


def _flatbuffer(schema: Any, operator: _Operator) -> bytes:
    flatbuffers: Any = importlib.import_module("flatbuffers")
    model, graph, node = schema.ModelT(), schema.SubGraphT(), schema.OperatorT()
    model.version, model.buffers, graph.tensors = 3, [schema.BufferT()], []
    places = [_tensor(schema, model, graph, array, constant) for array, constant in operator.operands]
    result = _tensor(schema, model, graph, np.empty(operator.output, np.float32), False)
    constants = [constant for _, constant in operator.operands]
    graph.inputs = [place for place, constant in zip(places, constants, strict=True) if not constant]
    graph.outputs, node.inputs, node.outputs = [result], places, [result]
    node.builtinOptionsType = getattr(schema.BuiltinOptions, operator.options_type)
    node.builtinOptions = operator.options
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, operator.code)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    graph.operators, model.operatorCodes, model.subgraphs = [node], [code], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(schema: Any, model: Any, graph: Any, array: Array, constant: bool) -> int:
    """Add a tensor of the array's shape and dtype, with its values if constant; returns its place."""
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.buffer = f"t{len(graph.tensors)}", list(array.shape), 0
    tensor.type = schema.TensorType.INT32 if array.dtype == np.int32 else schema.TensorType.FLOAT32
    if constant:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1
