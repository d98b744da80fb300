"""The values of a network under construction as a LiteRT model: where each lies, and in which order.

Images lie with their channels last from the first convolution on, and whatever is computed from them
element by element too; transposes stand only where an operator needs the order of the ONNX file.

A step computes on integers where its operands and its result have a quantization and LiteRT has it on int8.
Any other reads floats, and its result is made integers where the file has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from benchmarks.kernels.libraries.litert_flatbuffer import FlatModel
from benchmarks.kernels.libraries.network_steps import Step, Steps
from benchmarks.kernels.libraries.quantized_steps import Quantization
from benchmarks.kernels.workloads import Array, Shape

FUSED_INTO = ("Add", "Conv", "ConvTranspose")
DATA_OPERANDS: Final = {
    "Add": 2, "Clip": 1, "Concat": None, "Conv": 2, "Div": 2, "Gelu": 1, "Gemm": 2, "GlobalAveragePool": 1,
    "HardSwish": 1, "MatMul": 2, "MaxPool": 1, "Mul": 2, "ReduceMean": 1, "Relu": 1, "Resize": 1,
    "Sigmoid": 1, "Softmax": 1, "Sub": 2, "Tanh": 1,
}  # fmt: skip
"""What is computed on integers, and how many of its operands must be integers (None: all)."""
PROBABILITIES: Final = Quantization((1 / 256,), -128)
PRESCRIBED: Final = {
    "Sigmoid": PROBABILITIES, "Softmax": PROBABILITIES, "Tanh": Quantization((1 / 128,), 0),
}  # fmt: skip
"""Results that LiteRT has with one quantization only, whatever the file says."""
LARGEST: Final = 127


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor: its shape in the order of the ONNX file, whether its channels lie last, its place, and what
    its integers stand for (None: it is floats)."""

    shape: Shape
    last: bool = False
    place: int = -1
    quantization: Quantization | None = None

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
        self.constants, self.readers = dict(network.constants), network.readers()
        self.makers = {name: step for step in network.steps for name in step.outputs}
        self.values: dict[str, Value] = {}
        self.quantization, self._shapes = network.quantization, network.shapes
        self._activation = {
            step.output: after[0]
            for step in network.steps
            if step.operator in FUSED_INTO
            and step.output not in network.quantization
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

    def taps(self, name: str, numbers: Array, *, integers: bool) -> int:
        """The place of a weight in LiteRT's order, channels of outputs first (depthwise: last).

        Raises:
            ValueError: its integers have a zero that LiteRT cannot have.
        """
        if not integers:
            return self.floats(numbers)
        found = self.quantization[name]
        if found.zero:
            raise ValueError(f"{name}: expected a weight with a zero of 0")
        axis = 0 if numbers.shape[0] == len(found.scales) else numbers.ndim - 1
        found = replace(found, axis=axis if len(found.scales) > 1 else 0)
        return self.model.constant(found.integers(numbers), found)

    def bias(self, numbers: Array, data: Value, weight: str, *, integers: bool) -> int:
        """The place of a bias; int32 have the product of the scales of data and weight."""
        if not integers:
            return self.floats(numbers)
        assert data.quantization is not None
        factors = np.multiply(data.quantization.scales, self.quantization[weight].scales)
        found = Quantization(tuple(map(float, factors)), 0)
        return self.model.constant(np.rint(numbers / factors).astype(np.int32), found)

    def on_integers(self, step: Step) -> bool:
        """Whether a step's operands and its result are integers, and LiteRT has it on them."""
        if step.operator not in DATA_OPERANDS or self.result(step) is None:
            return False
        return all(self._known(name) for name in step.inputs[: DATA_OPERANDS[step.operator]])

    def result(self, step: Step) -> Quantization | None:
        """What a step's result, or that of the activation fused into it, is in the file."""
        return self.quantization.get(self._activation.get(step.output, step).output)

    def _known(self, name: str) -> bool:
        if name in self.constants:
            return name in self.quantization or self.constants[name].size == 1
        return self.values[name].quantization is not None

    def value(self, name: str, *, last: bool, integers: bool = False) -> Value:
        """An operand, a constant too, with its channels where they are wanted: integers if asked and known,
        else floats."""
        if name in self.constants:
            constant = self.constants[name]
            order = Value(constant.shape, last and constant.ndim > 2)
            numbers = constant.transpose(order.axes)
            if not integers:
                return replace(order, place=self.floats(numbers))
            found = self.quantization.get(name) or one_number(float(constant.item()))
            place = self.model.constant(found.integers(numbers), found)
            return replace(order, place=place, quantization=found)
        value = self.values[name]
        if not integers:
            value = self.converted(value, None)
        return value if value.last == last else self.moved(value, replace(value, last=last))

    def reciprocal(self, name: str) -> str:
        """The name of one over a constant."""
        found = f"1/{name}"
        self.constants[found] = 1 / self.constants[name]
        return found

    def converted(self, value: Value, quantization: Quantization | None) -> Value:
        """The same numbers as integers of this quantization, or as floats."""
        if value.quantization == quantization:
            return value
        name = "Quantize" if quantization else "Dequantize"
        after = replace(value, quantization=quantization)
        return self.add(name.upper(), self.options(name), [value.place], after)

    def moved(self, value: Value, after: Value) -> Value:
        """The same values in another order."""
        axes = [value.axes.index(axis) for axis in after.axes]
        if (several := [axis for axis in axes if value.stored[axis] > 1]) == sorted(several):
            return self.reshaped(value, after)  # only dimensions of one element change their places
        return self.add("TRANSPOSE", self.options("Transpose"), [value.place, self.integers(axes)], after)

    def reshaped(self, value: Value, after: Value) -> Value:
        """The same elements as another shape."""
        after = replace(after, quantization=value.quantization)
        if value.stored == after.stored:
            return replace(after, place=value.place)
        options = self.options("Reshape", newShape=list(after.stored))
        return self.add("RESHAPE", options, [value.place, self.integers(after.stored)], after)

    def add(self, code: str, options: Any, operands: Sequence[int], value: Value) -> Value:
        """One operator; its result as `value` with a place."""
        place = self.model.operator(code, options, operands, value.stored, value.quantization)
        return replace(value, place=place)

    def finish(
        self,
        step: Step,
        code: str,
        options: Any,
        operands: Sequence[int],
        *,
        last: bool,
        computed: Value | None = None,
        integers: bool = False,
    ) -> None:
        """The operator that computes a step's result, with the activation that follows it, on `integers` or
        not; `computed`: as another shape of the same elements, or as integers that are not the file's."""
        fused = self._activation.get(step.output)
        if fused is not None:
            kinds = self.model.schema.ActivationFunctionType
            options.fusedActivationFunction = kinds.RELU if fused.operator == "Relu" else kinds.RELU6
        wanted = self.result(step)
        shape = Value(self.shape(step.output), last)
        computed = computed or shape
        found = computed.quantization or PRESCRIBED.get(step.operator, wanted)
        computed = replace(computed, quantization=found if integers else None)
        value = self.reshaped(self.add(code, options, operands, computed), shape)
        value = value if integers else self.converted(value, wanted)
        self.values |= {item.output: value for item in (step, fused) if item is not None}

    def moves(self, name: str, value: Value) -> None:
        """The result of a step that only moves its operand: integers stay what they are."""
        self.values[name] = self.converted(value, self.quantization.get(name, value.quantization))


def one_number(number: float) -> Quantization:
    """What a single number is to the last digit as an integer."""
    return Quantization(((abs(number) or 1.0) / LARGEST,), 0)
