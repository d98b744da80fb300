"""Matrix products, normalizations and recurrent layers as LiteRT's operators."""

from __future__ import annotations

import numpy as np

from benchmarks.kernels.libraries.litert_values import LiteRtValues, Value
from benchmarks.kernels.libraries.network_steps import Step
from benchmarks.kernels.workloads import Array

OPTIONAL = -1  # a tensor that is left out


def matmul(net: LiteRtValues, step: Step) -> None:
    """With a constant at the right, the fully connected operator, which packs it ahead of time."""
    left, right = step.inputs
    if right in net.constants and net.constants[right].ndim == 2:
        _fully_connected(net, step, right, net.constants[right].T, None)
        return
    integers = net.on_integers(step)
    operands = [net.value(name, last=False, integers=integers).place for name in (left, right)]
    net.finish(step, "BATCH_MATMUL", net.options("BatchMatMul"), operands, last=False, integers=integers)


def gemm(net: LiteRtValues, step: Step) -> None:
    """A product with a constant and the sum with a row."""
    _, weight, *bias = step.inputs
    taps = net.constants[weight]
    row = net.constants[bias[0]] if bias else None
    _fully_connected(net, step, weight, taps if step.attributes.get("transB") else taps.T, row)


def _fully_connected(net: LiteRtValues, step: Step, name: str, weight: Array, bias: Array | None) -> None:
    """With the sum that follows it where that adds a row, which is then not made integers in between;
    `weight`, of this name, is [outputs, inputs]."""
    data, integers = step.inputs[0], net.on_integers(step)
    after = net.readers.get(step.output, [])
    rows = [net.constants[name] for item in after for name in item.inputs if name in net.constants]
    added = bias is None and [item.operator for item in after] == ["Add"] and len(rows) == 1
    if added and rows[0].shape == (len(weight),):
        bias, step = rows[0], after[0]
        integers = integers and net.result(step) is not None
    operand = net.value(data, last=False, integers=integers)
    operands = [operand.place, net.taps(name, weight, integers=integers)]
    if bias is not None:
        operands.append(net.bias(bias, operand, name, integers=integers))
    options = net.options("FullyConnected", keepNumDims=len(operand.shape) != 2)
    net.finish(step, "FULLY_CONNECTED", options, operands, last=False, integers=integers)


def layer_norm(net: LiteRtValues, step: Step) -> None:
    """Of the last dimension, in the operators that converters write."""
    data = net.value(step.inputs[0], last=False)
    row, axis = Value((*data.shape[:-1], 1)), net.integers([len(data.shape) - 1])
    mean = net.add("MEAN", net.options("Reducer", keepDims=True), [data.place, axis], row)
    square = net.add("SQUARED_DIFFERENCE", net.options("SquaredDifference"), [data.place, mean.place], data)
    variance = net.add("MEAN", net.options("Reducer", keepDims=True), [square.place, axis], row)
    epsilon = net.floats([step.attributes["epsilon"]])
    moved = net.add("ADD", net.options("Add"), [variance.place, epsilon], row)
    factor = net.add("RSQRT", None, [moved.place], row)
    centred = net.add("SUB", net.options("Sub"), [data.place, mean.place], data)
    normal = net.add("MUL", net.options("Mul"), [centred.place, factor.place], data)
    scale, shift = (net.value(name, last=False).place for name in step.inputs[1:])
    scaled = net.add("MUL", net.options("Mul"), [normal.place, scale], data)
    net.finish(step, "ADD", net.options("Add"), [scaled.place, shift], last=False)


def lstm(net: LiteRtValues, step: Step) -> None:
    """An LSTM over all steps from states of zeros; of its results, the states of all steps only.

    Raises:
        ValueError: it has lengths or initial states, or its last states are read.
    """
    if len(step.inputs) > 4 or any(net.readers.get(name) for name in step.outputs[1:]):
        raise ValueError(f"{step.output}: expected no lengths, and no states that come in or go out")
    weight, recurrent, bias = (net.constants[name][0] for name in step.inputs[1:4])
    hidden = recurrent.shape[1]
    order = (0, 2, 3, 1)  # of gates: ONNX has i o f c, LiteRT i f c o
    own, back = (item.reshape(4, hidden, -1)[list(order)] for item in (weight, recurrent))
    rows = bias.reshape(2, 4, hidden).sum(axis=0)[list(order)]
    data = net.value(step.inputs[0], last=False)
    states = [net.model.variable((1, hidden), kept=True) for _ in range(2)]
    operands = [
        data.place, *(net.floats(item) for item in own), *(net.floats(item) for item in back),
        *[OPTIONAL] * 3, *(net.floats(item) for item in rows), *[OPTIONAL] * 2, *states, *[OPTIONAL] * 4,
    ]  # fmt: skip
    tanh = net.model.schema.ActivationFunctionType.TANH
    options = net.options("UnidirectionalSequenceLSTM", fusedActivationFunction=tanh, timeMajor=True)
    steps = Value((data.shape[0], 1, hidden))
    found = net.add("UNIDIRECTIONAL_SEQUENCE_LSTM", options, operands, steps)
    net.values[step.output] = net.reshaped(found, Value(net.shape(step.output)))


def gather(net: LiteRtValues, step: Step) -> None:
    """Rows of a constant table, or one place of a dimension."""
    axis = step.attributes.get("axis", 0)
    data, indices = step.inputs
    operand = net.value(data, last=False)
    if indices in net.constants:
        places = net.integers(np.asarray(net.constants[indices]) % operand.shape[axis])
    else:
        places = net.values[indices].place
    net.finish(step, "GATHER", net.options("Gather", axis=axis), [operand.place, places], last=False)
