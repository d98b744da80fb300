"""The values of a network under construction as a LiteRT model: where each lies, and in which order.

Images lie with their channels last from the first convolution on, and whatever is computed from them
element by element too; transposes stand only where an operator needs the order of the ONNX file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels.libraries.litert_flatbuffer import FlatModel
from benchmarks.kernels.libraries.network_steps import Step, Steps
from benchmarks.kernels.workloads import Array, Shape

FUSED_INTO = ("Add", "Conv", "ConvTranspose")


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: its shape in the order of the ONNX file, whether its channels lie last, and its place."""

    shape: Shape
    last: bool = False
    place: int = -1

    @property
    def axes(self) -> tuple[int, ...]:
        """The order in which its dimensions lie."""
        rank = range(len(self.shape))
        return (0, *rank[2:], 1) if self.last else tuple(rank)

    @property
    def stored(self) -> Shape:
        """Its shape as it lies."""
        return tuple(self.shape[axis] for axis in self.axes)


class LiteRtValues:
    """The results so far, by name."""

    def __init__(self, network: Steps) -> None:
        self.model = FlatModel()
        self.constants, self.readers = network.constants, network.readers()
        self.makers = {name: step for step in network.steps for name in step.outputs}
        self.values: dict[str, Value] = {}
        self._shapes = network.shapes
        self._activation = {
            step.output: after[0]
            for step in network.steps
            if step.operator in FUSED_INTO
            and len(after := self.readers.get(step.output, [])) == 1
            and (after[0].operator == "Relu" or (after[0].operator == "Clip" and self.clips_to_six(after[0])))
        }

    def clips_to_six(self, step: Step) -> bool:
        """Whether a Clip is a ReLU6."""
        return [float(self.constants[name]) for name in step.inputs[1:]] == [0.0, 6.0]

    def shape(self, name: str) -> Shape:
        """The shape of a value in the order of the ONNX file."""
        return self.constants[name].shape if name in self.constants else self._shapes[name]

    def options(self, kind: str, **values: Any) -> Any:
        """The options of an operator."""
        return self.model.options(kind, **values)

    def integers(self, values: Sequence[Any]) -> int:
        """The place of constant integers, such as axes."""
        return self.model.constant(np.asarray(values, np.int32))

    def floats(self, values: Array | Sequence[float]) -> int:
        """The place of constant numbers."""
        return self.model.constant(np.ascontiguousarray(values, np.float32))

    def value(self, name: str, *, last: bool) -> Value:
        """An operand, a constant too, with its channels where they are wanted."""
        if name in self.constants:
            constant = self.constants[name]
            order = Value(constant.shape, last and constant.ndim > 2)
            return Value(order.shape, order.last, self.floats(constant.transpose(order.axes)))
        value = self.values[name]
        return value if value.last == last else self.moved(value, Value(value.shape, last))

    def moved(self, value: Value, after: Value) -> Value:
        """The same values in another order."""
        axes = [value.axes.index(axis) for axis in after.axes]
        if (several := [axis for axis in axes if value.stored[axis] > 1]) == sorted(several):
            return self.reshaped(value, after)  # only dimensions of one element change their places
        return self.add("TRANSPOSE", self.options("Transpose"), [value.place, self.integers(axes)], after)

    def reshaped(self, value: Value, after: Value) -> Value:
        """The same elements as another shape."""
        if value.stored == after.stored:
            return Value(after.shape, after.last, value.place)
        options = self.options("Reshape", newShape=list(after.stored))
        return self.add("RESHAPE", options, [value.place, self.integers(after.stored)], after)

    def add(self, code: str, options: Any, operands: Sequence[int], value: Value) -> Value:
        """One operator; its result as `value` with a place."""
        return Value(value.shape, value.last, self.model.operator(code, options, operands, value.stored))

    def finish(
        self,
        step: Step,
        code: str,
        options: Any,
        operands: Sequence[int],
        *,
        last: bool,
        computed: Value | None = None,
    ) -> None:
        """The operator that computes a step's result, with the activation that follows it; `computed`: as
        another shape of the same elements."""
        fused = self._activation.get(step.output)
        if fused is not None:
            kinds = self.model.schema.ActivationFunctionType
            options.fusedActivationFunction = kinds.RELU if fused.operator == "Relu" else kinds.RELU6
        shape = Value(self.shape(step.output), last)
        value = self.reshaped(self.add(code, options, operands, computed or shape), shape)
        self.values |= {item.output: value for item in (step, fused) if item is not None}
