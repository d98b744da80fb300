"""A network as a LiteRT model, from the steps of network_steps.py: NHWC, activations fused as converters do.

Padding that TensorFlow's SAME does not describe is an operator of its own, which XNNPACK merges into what
follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.kernels.libraries.litert_flatbuffer import FlatModel
from benchmarks.kernels.libraries.network_steps import Step
from benchmarks.kernels.workloads import Shape

FUSED_INTO = ("conv", "add")


def litert_network(shape: Shape, steps: Sequence[Step]) -> bytes:
    """The model's file; `shape` of the input is NCHW.

    Raises:
        ValueError: a step cannot be said in LiteRT's operators.
    """
    return _Network(shape, steps).content


class _Network:
    """Places and NHWC shapes of the results so far, by name."""

    def __init__(self, shape: Shape, steps: Sequence[Step]) -> None:
        self._model = FlatModel()
        self._schema = self._model.schema
        batch, channels, height, width = shape
        first = (batch, height, width, channels)
        source = self._model.variable(first)
        (name,) = {name for step in steps for name in step.inputs} - {step.output for step in steps}
        self._places = {name: source}
        self._shapes: dict[str, Shape] = {name: first}
        self._steps = {step.output: step for step in steps}
        self._activation = _activations(steps)
        for step in steps:
            if step.output not in self._places:
                getattr(self, f"_{step.kind}")(step)
        self.content = self._model.finished([source], self._places[steps[-1].output])

    def _add_operator(
        self, step: Step, code: str, options: Any, operands: Sequence[int], output: Shape
    ) -> None:
        """One operator with the activation that follows it, whose name its result has too."""
        fused = self._activation.get(step.output)
        if fused is not None and hasattr(options, "fusedActivationFunction"):
            kinds = self._schema.ActivationFunctionType
            options.fusedActivationFunction = kinds.RELU if fused.kind == "relu" else kinds.RELU6
        place = self._model.operator(code, options, operands, output)
        for name in (step.output, *([fused.output] if fused is not None else [])):
            self._places[name], self._shapes[name] = place, output

    def _conv(self, step: Step) -> None:
        assert step.weight is not None and step.bias is not None
        depthwise = step.attributes["groups"] > 1
        weight = step.weight.transpose(1, 2, 3, 0) if depthwise else step.weight.transpose(0, 2, 3, 1)
        if depthwise and step.weight.shape[1] != 1:
            raise ValueError(f"{step.output}: expected a depthwise convolution, found {weight.shape}")
        kind, own = ("DepthwiseConv2D", {"depthMultiplier": 1}) if depthwise else ("Conv2D", {})
        options = self._model.options(kind, dilationHFactor=1, dilationWFactor=1, **own)
        data, output = self._windowed(step, step.weight.shape[2], len(step.weight), options)
        operands = [data, self._model.constant(weight), self._model.constant(step.bias)]
        self._add_operator(step, "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D", options, operands, output)

    def _max_pool(self, step: Step) -> None:
        before = self._steps.get(step.inputs[0])
        if step.attributes["pad"] and (before is None or before.kind not in ("relu", "clip")):
            raise ValueError(f"{step.output}: zeros as padding need data that is never negative")
        kernel = int(step.attributes["kernel"])
        options = self._model.options("Pool2D", filterHeight=kernel, filterWidth=kernel)
        data, output = self._windowed(step, kernel, self._shapes[step.inputs[0]][3], options)
        self._add_operator(step, "MAX_POOL_2D", options, [data], output)

    def _windowed(self, step: Step, kernel: int, channels: int, options: Any) -> tuple[int, Shape]:
        """Stride and padding of a window; the place of its data, padded where SAME is something else."""
        stride, pad = int(step.attributes["stride"]), int(step.attributes["pad"])
        data, (batch, size, _, inputs) = self._places[step.inputs[0]], self._shapes[step.inputs[0]]
        output = (size + 2 * pad - kernel) // stride + 1
        options.strideH = options.strideW = stride
        same = -(-size // stride)
        total = max(0, (same - 1) * stride + kernel - size)
        options.padding = self._schema.Padding.SAME
        if (output, total // 2, total - total // 2) != (same, pad, pad):
            options.padding = self._schema.Padding.VALID
            if pad:
                around = self._model.constant(np.array([[0, 0], [pad] * 2, [pad] * 2, [0, 0]], np.int32))
                padded = (batch, size + 2 * pad, size + 2 * pad, inputs)
                data = self._model.operator("PAD", self._model.options("Pad"), [data, around], padded)
        return data, (batch, output, output, channels)

    def _add(self, step: Step) -> None:
        operands = [self._places[name] for name in step.inputs]
        self._add_operator(step, "ADD", self._model.options("Add"), operands, self._shapes[step.inputs[0]])

    def _mean(self, step: Step) -> None:
        (data,), (batch, _, _, channels) = step.inputs, self._shapes[step.inputs[0]]
        operands = [self._places[data], self._model.constant(np.array([1, 2], np.int32))]
        options = self._model.options("Reducer", keepDims=True)
        self._add_operator(step, "MEAN", options, operands, (batch, 1, 1, channels))

    def _flatten(self, step: Step) -> None:
        shape = self._shapes[step.inputs[0]]
        if shape[1:3] != (1, 1):
            raise ValueError(f"{step.output}: expected one pixel to flatten, found {shape}")
        output = (shape[0], shape[3])
        operands = [self._places[step.inputs[0]], self._model.constant(np.array(output, np.int32))]
        options = self._model.options("Reshape", newShape=list(output))
        self._add_operator(step, "RESHAPE", options, operands, output)

    def _dense(self, step: Step) -> None:
        assert step.weight is not None and step.bias is not None
        operands = [
            self._places[step.inputs[0]], self._model.constant(step.weight), self._model.constant(step.bias)
        ]  # fmt: skip
        output = (self._shapes[step.inputs[0]][0], len(step.weight))
        self._add_operator(step, "FULLY_CONNECTED", self._model.options("FullyConnected"), operands, output)

    def _softmax(self, step: Step) -> None:
        options, (data,) = self._model.options("Softmax", beta=1.0), step.inputs
        self._add_operator(step, "SOFTMAX", options, [self._places[data]], self._shapes[data])

    def _relu(self, step: Step) -> None:
        raise ValueError(f"{step.output}: expected an activation right behind one of {', '.join(FUSED_INTO)}")

    _clip = _relu


def _activations(steps: Sequence[Step]) -> dict[str, Step]:
    """The activation that can be fused into each result: ReLU or ReLU6, the only one that reads it."""
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.inputs:
            readers.setdefault(name, []).append(step)
    found = {}
    for step in steps:
        after = readers.get(step.output, [])
        if step.kind in FUSED_INTO and len(after) == 1 and _fusible(after[0]):
            found[step.output] = after[0]
    return found


def _fusible(step: Step) -> bool:
    clip = step.kind == "clip" and (step.attributes["low"], step.attributes["high"]) == (0.0, 6.0)
    return step.kind == "relu" or clip
