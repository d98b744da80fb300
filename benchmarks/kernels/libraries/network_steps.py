"""A network's ONNX file as a short list of steps that a library without an ONNX reader can be built from.

Batch normalizations are folded into the convolutions before them and the five nodes of a GELU are one step,
as every library's own converter does ahead of time. Pairs of QuantizeLinear and DequantizeLinear are no steps
(quantized_steps.py). Needs the package onnx.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.libraries.quantized_steps import Pairs, Quantization
from benchmarks.kernels.workloads import Array, Shape

GELU = ("Div", "Erf", "Add", "Mul", "Mul")


@dataclass(frozen=True, slots=True)
class Step:
    """One ONNX operator of opset 17, or "Gelu".

    `inputs`: names of earlier results, of constants or of the network's input; "" for one that is left out.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """The first output."""
        return self.outputs[0]


@dataclass(frozen=True, slots=True)
class Steps:
    """A network: one input, one output, the steps in order; `shapes`: of all values but constants.

    `quantization`: of values that are integers, and of constants that are. `dtypes`: of input and output.
    """

    input: str
    output: str
    steps: tuple[Step, ...]
    constants: Mapping[str, Array]
    shapes: Mapping[str, Shape]
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    dtypes: tuple[str, str] = ("float32", "float32")

    def readers(self) -> dict[str, list[Step]]:
        """The steps that read each value."""
        found: dict[str, list[Step]] = {}
        for step in self.steps:
            for name in step.inputs:
                found.setdefault(name, []).append(step)
        return found


def network_steps(model: Path) -> Steps:
    """The network in a file.

    Raises:
        ValueError: it has several inputs or outputs, a batch normalization that follows no convolution, or a
            quantization that is none of one value.
    """
    onnx: Any = importlib.import_module("onnx")  # not needed to import this file
    graph = onnx.shape_inference.infer_shapes(onnx.load(str(model))).graph
    if (len(graph.input), len(graph.output)) != (1, 1):
        raise ValueError(f"expected one input and one output, found {len(graph.input)}, {len(graph.output)}")
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    made: dict[str, Step] = {}
    pairs = Pairs(constants)
    for node in graph.node:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        if pairs.removed(node.op_type, node.input, node.output[0], attributes):
            continue
        step = Step(node.op_type, pairs.read(node.input), tuple(node.output), attributes)
        if step.operator == "BatchNormalization":
            step = _folded(made.pop(step.inputs[0], None), step, constants)
        made[step.output] = step
    values = [*graph.input, *graph.value_info, *graph.output]
    (output,) = pairs.read([graph.output[0].name])
    pairs.check()
    return Steps(
        input=graph.input[0].name,
        output=output,
        steps=tuple(_with_gelu(made, constants)),
        constants=constants,
        shapes={item.name: tuple(d.dim_value for d in item.type.tensor_type.shape.dim) for item in values},
        quantization=pairs.quantization,
        dtypes=(_dtype(onnx, graph.input[0]), _dtype(onnx, graph.output[0])),
    )


def _dtype(onnx: Any, value: Any) -> str:
    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _folded(convolution: Step | None, norm: Step, constants: dict[str, Array]) -> Step:
    """scale * (x - mean) / sqrt(variance + epsilon) + shift, into a new weight and bias."""
    if convolution is None or convolution.operator not in ("Conv", "ConvTranspose"):
        raise ValueError(f"{norm.output}: expected a convolution before a batch normalization")
    scale, shift, mean, variance = (constants[name].astype(np.float64) for name in norm.inputs[1:])
    data, weight, *bias = convolution.inputs
    factor = scale / np.sqrt(variance + norm.attributes["epsilon"])
    outputs = 0 if convolution.operator == "Conv" else 1  # the weight's dimension that counts output channels
    taps = constants[weight]
    factors = factor.reshape([-1 if at == outputs else 1 for at in range(taps.ndim)])
    names = (f"{norm.output}.weight", f"{norm.output}.bias")
    before = constants[bias[0]] if bias else 0.0
    constants[names[0]] = (taps * factors).astype(np.float32)
    constants[names[1]] = ((before - mean) * factor + shift).astype(np.float32)
    return replace(convolution, inputs=(data, *names), outputs=norm.outputs)


def _with_gelu(made: Mapping[str, Step], constants: Mapping[str, Array]) -> list[Step]:
    """The steps with x / sqrt(2), erf, + 1, * x, * 1/2 as one."""
    found = dict(made)
    for last in made.values():
        chain = _chain(last, GELU, made)
        if not chain:
            continue
        data = chain[0].inputs[0]
        numbers = [
            float(constants[name].item()) for step in chain for name in step.inputs if name in constants
        ]
        if data in chain[3].inputs and np.allclose(numbers, (np.sqrt(2.0), 1.0, 0.5)):
            for step in chain:
                del found[step.output]
            found[last.output] = Step("Gelu", (data,), last.outputs)
    order = {name: number for number, name in enumerate(made)}
    return sorted(found.values(), key=lambda step: order[step.output])


def _chain(last: Step, operators: Sequence[str], made: Mapping[str, Step]) -> list[Step]:
    """Steps of these operators, each read by the next one, up to `last`; empty where there are none."""
    *before, operator = operators
    if last.operator != operator:
        return []
    if not before:
        return [last]
    earlier = (_chain(made[name], before, made) for name in last.inputs if name in made)
    return next(([*chain, last] for chain in earlier if chain), [])
