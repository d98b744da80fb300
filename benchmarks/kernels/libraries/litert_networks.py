"""A network as a LiteRT model, from the steps of network_steps.py, as converters write it.

litert_values.py has the order of images, litert_windows.py and litert_products.py the operators that are
more than a name. Activations are fused; padding that TensorFlow's SAME does not describe is an operator of
its own, which XNNPACK merges into what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.kernels.libraries.litert_products import gather, gemm, layer_norm, lstm, matmul
from benchmarks.kernels.libraries.litert_values import LiteRtValues, Value
from benchmarks.kernels.libraries.litert_windows import conv, max_pool, resize, transposed
from benchmarks.kernels.libraries.network_steps import Step, Steps

UNARY = {
    "Clip": ("RELU6", ""), "Gelu": ("GELU", "Gelu"), "HardSwish": ("HARD_SWISH", "HardSwish"),
    "Relu": ("RELU", ""), "Sigmoid": ("LOGISTIC", ""), "Tanh": ("TANH", ""),
}  # fmt: skip
BINARY = {"Add": ("ADD", "Add"), "Div": ("DIV", "Div"), "Mul": ("MUL", "Mul"), "Sub": ("SUB", "Sub")}


@dataclass(frozen=True, slots=True)
class LiteRtNetwork:
    """The model's file. `input_axes`, `output_axes`: the transposes from the order of the ONNX file to the
    model's, and back. Where the file's input or output is uint8, the model's is int8, 128 less."""

    content: bytes
    input_axes: tuple[int, ...]
    output_axes: tuple[int, ...]


def litert_network(network: Steps) -> LiteRtNetwork:
    """Build the model.

    Raises:
        ValueError: a step cannot be said in LiteRT's operators; the text names it.
    """
    net = LiteRtValues(network)
    first = {step.operator for step in net.readers[network.input]}
    source = Value(network.shapes[network.input], bool(first & {"Conv", "ConvTranspose"}))
    known, (given, computed) = net.quantization.get(network.input), network.dtypes
    source = replace(source, quantization=None if given == "float32" else known)
    place = net.model.variable(source.stored, integers="Gather" in first, quantization=source.quantization)
    net.values[network.input] = net.converted(replace(source, place=place), known)
    for step in network.steps:
        if step.operator not in OPERATORS:
            raise ValueError(f"{step.output} is a {step.operator}: expected one of {', '.join(OPERATORS)}")
        if step.output not in net.values:  # not fused into what came before
            OPERATORS[step.operator](net, step)
    output = net.values[network.output]
    output = net.converted(output, None if computed == "float32" else net.quantization[network.output])
    content = net.model.finished([place], output.place)
    return LiteRtNetwork(content, source.axes, tuple(int(axis) for axis in np.argsort(output.axes)))


def _unary(net: LiteRtValues, step: Step) -> None:
    if step.operator == "Clip" and not net.clips_to_six(step):
        raise ValueError(f"{step.output}: expected a Clip to 0..6")
    code, kind = UNARY[step.operator]
    integers = net.on_integers(step)
    data = net.value(step.inputs[0], last=net.values[step.inputs[0]].last, integers=integers)
    options = net.options(kind) if kind else None
    net.finish(step, code, options, [data.place], last=data.last, integers=integers)


def _binary(net: LiteRtValues, step: Step) -> None:
    last = any(name in net.values and net.values[name].last for name in step.inputs)
    divisor = net.constants.get(step.inputs[1]) if step.operator == "Div" else None
    integers = net.on_integers(step)
    if step.operator == "Div" and (divisor is None or divisor.size > 1):
        integers = False
    if integers and divisor is not None:  # integers have no division
        step = replace(step, operator="Mul", inputs=(step.inputs[0], net.reciprocal(step.inputs[1])))
    operands = [net.value(name, last=last, integers=integers) for name in step.inputs]
    if last and any(0 < len(item.shape) < len(net.shape(step.output)) for item in operands):
        raise ValueError(f"{step.output}: expected operands of equal ranks")
    code, kind = BINARY[step.operator]
    places = [item.place for item in operands]
    net.finish(step, code, net.options(kind), places, last=last, integers=integers)


def _hard_sigmoid(net: LiteRtValues, step: Step) -> None:
    """min(max(x + 3, 0), 6) / 6, as TensorFlow says it."""
    if not np.allclose((step.attributes["alpha"], step.attributes["beta"]), (1 / 6, 0.5)):
        raise ValueError(f"{step.output}: expected alpha 1/6 and beta 1/2, found {step.attributes}")
    data = net.value(step.inputs[0], last=net.values[step.inputs[0]].last)
    options = net.options("Add", fusedActivationFunction=net.model.schema.ActivationFunctionType.RELU6)
    moved = net.add("ADD", options, [data.place, net.floats([3.0])], data)
    net.finish(step, "MUL", net.options("Mul"), [moved.place, net.floats([1 / 6])], last=data.last)


def _softmax(net: LiteRtValues, step: Step) -> None:
    rank = len(net.shape(step.output))
    axis = step.attributes["axis"] % rank
    integers = net.on_integers(step)
    data = net.value(step.inputs[0], last=axis == 1 and rank > 2, integers=integers)
    if data.axes[-1] != axis:
        raise ValueError(f"{step.output}: expected a softmax of channels or of the last dimension")
    options = net.options("Softmax", beta=1.0)
    net.finish(step, "SOFTMAX", options, [data.place], last=data.last, integers=integers)


def _mean(net: LiteRtValues, step: Step) -> None:
    data = net.values[step.inputs[0]]
    rank, whole = len(data.shape), step.operator == "GlobalAveragePool"
    axes = range(2, rank) if whole else [axis % rank for axis in step.attributes["axes"]]
    keeps = whole or bool(step.attributes.get("keepdims", 1))
    integers = net.on_integers(step)
    data = net.value(step.inputs[0], last=data.last and keeps, integers=integers)
    operands = [data.place, net.integers(sorted(data.axes.index(axis) for axis in axes))]
    options = net.options("Reducer", keepDims=keeps)
    net.finish(step, "MEAN", options, operands, last=data.last, integers=integers)


def _concat(net: LiteRtValues, step: Step) -> None:
    last = any(name in net.values and net.values[name].last for name in step.inputs)
    axis = step.attributes["axis"] % len(net.shape(step.output))
    integers = net.on_integers(step)
    operands = [net.value(name, last=last, integers=integers) for name in step.inputs]
    if integers:
        operands = [net.converted(item, net.result(step)) for item in operands]
    options = net.options("Concatenation", axis=operands[0].axes.index(axis))
    places = [item.place for item in operands]
    net.finish(step, "CONCATENATION", options, places, last=last, integers=integers)


def _split(net: LiteRtValues, step: Step) -> None:
    """Into parts of any sizes: a slice each."""
    data = net.values[step.inputs[0]]
    axis = data.axes.index(step.attributes["axis"] % len(data.shape))
    start = 0
    for name in step.outputs:
        part = replace(data, shape=net.shape(name))
        begin = [start if at == axis else 0 for at in range(len(data.shape))]
        operands = [data.place, net.integers(begin), net.integers(part.stored)]
        net.moves(name, net.add("SLICE", net.options("Slice"), operands, part))
        start += part.stored[axis]


def _reshape(net: LiteRtValues, step: Step) -> None:
    """An image whose pixels become one dimension keeps its channels last."""
    data, shape = net.values[step.inputs[0]], net.shape(step.output)
    last = data.last and len(shape) == 3 and shape[:2] == data.shape[:2]
    data = net.value(step.inputs[0], last=last, integers=True)
    net.moves(step.output, net.reshaped(data, Value(shape, last)))


def _transpose(net: LiteRtValues, step: Step) -> None:
    """From the order in which the data lies."""
    data, perm = net.values[step.inputs[0]], step.attributes["perm"]
    axes = [data.axes.index(axis) for axis in perm]
    after = replace(data, shape=tuple(data.shape[axis] for axis in perm), last=False)
    if (several := [axis for axis in axes if data.stored[axis] > 1]) == sorted(several):
        net.moves(step.output, net.reshaped(data, after))
    else:
        operands = [data.place, net.integers(axes)]
        net.moves(step.output, net.add("TRANSPOSE", net.options("Transpose"), operands, after))


OPERATORS: dict[str, Callable[[LiteRtValues, Step], None]] = {
    "Concat": _concat, "Conv": conv, "ConvTranspose": transposed, "Flatten": _reshape, "Gather": gather,
    "Gemm": gemm, "GlobalAveragePool": _mean, "HardSigmoid": _hard_sigmoid, "LSTM": lstm,
    "LayerNormalization": layer_norm, "MatMul": matmul, "MaxPool": max_pool, "ReduceMean": _mean,
    "Reshape": _reshape, "Resize": resize, "Softmax": _softmax, "Split": _split, "Squeeze": _reshape,
    "Transpose": _transpose, **dict.fromkeys(UNARY, _unary), **dict.fromkeys(BINARY, _binary),
}  # fmt: skip
