"""A network's ONNX file as a short list of steps that a library without an ONNX reader can be built from.

Batch normalizations are folded into the convolutions before them, as every library does ahead of time. Only
what classification networks are made of is known. Needs the package onnx.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.workloads import Array

KINDS = {
    "Conv": "conv", "Relu": "relu", "Clip": "clip", "MaxPool": "max_pool", "Add": "add",
    "GlobalAveragePool": "mean", "Flatten": "flatten", "Gemm": "dense", "Softmax": "softmax",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One operator: `inputs` are names of earlier results or of the network's input.

    conv: weight OIHW and bias; attributes stride, pad (both ways alike), groups. clip: low, high. max_pool:
    kernel, stride, pad. dense: weight [outputs, inputs] and bias. The others have neither.
    """

    kind: str
    inputs: tuple[str, ...]
    output: str
    weight: Array | None = None
    bias: Array | None = None
    attributes: dict[str, float] = field(default_factory=dict)


def network_steps(model: Path) -> tuple[str, list[Step]]:
    """The name of the network's input, and its steps in order.

    Raises:
        ValueError: an operator is unknown, or used in a way that no step describes.
    """
    onnx: Any = importlib.import_module("onnx")  # not needed to import this file
    graph = onnx.load(str(model)).graph
    weights = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    made: dict[str, Step] = {}
    for node in graph.node:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        inputs = [name for name in node.input if name not in weights]
        constants = [weights[name] for name in node.input if name in weights]
        if node.op_type == "BatchNormalization":
            convolution = made.pop(inputs[0])
            made[node.output[0]] = _folded(convolution, constants, attributes["epsilon"], node.output[0])
        elif node.op_type in KINDS:
            kind = KINDS[node.op_type]
            made[node.output[0]] = _step(kind, tuple(inputs), node.output[0], constants, attributes)
        else:
            raise ValueError(f"{node.name} is a {node.op_type}: expected one of {', '.join(KINDS)}")
    return graph.input[0].name, list(made.values())


def _folded(convolution: Step, constants: list[Array], epsilon: float, output: str) -> Step:
    """scale * (x - mean) / sqrt(variance + epsilon) + shift, into weight and bias."""
    scale, shift, mean, variance = (item.astype(np.float64) for item in constants)
    assert convolution.weight is not None and convolution.bias is not None
    factor = scale / np.sqrt(variance + epsilon)
    weight = convolution.weight * factor[:, None, None, None]
    bias = (convolution.bias - mean) * factor + shift
    return replace(convolution, output=output, weight=weight.astype(np.float32), bias=bias.astype(np.float32))


def _step(
    kind: str, inputs: tuple[str, ...], output: str, constants: list[Array], attributes: dict[str, Any]
) -> Step:
    weight = bias = None
    numbers: dict[str, float] = {}
    if kind in ("conv", "max_pool"):
        numbers = {"stride": attributes["strides"][0], "pad": attributes["pads"][0]}
        if len({*attributes["pads"]}) != 1 or len({*attributes["strides"]}) != 1:
            raise ValueError(f"{output}: expected equal padding and strides all round, found {attributes}")
    if kind == "conv":
        weight = constants[0]
        bias = constants[1] if len(constants) > 1 else np.zeros(len(weight), np.float32)
        numbers["groups"] = attributes.get("group", 1)
    if kind == "max_pool":
        numbers["kernel"] = attributes["kernel_shape"][0]
    if kind == "clip":
        numbers = {"low": float(constants[0]), "high": float(constants[1])}
    if kind == "dense":
        weight, bias = (constants[0] if attributes.get("transB") else constants[0].T), constants[1]
    return Step(kind, inputs, output, weight, bias, numbers)
