"""One ONNX node as an importer sees it: typed attributes, operands, and refusals that say what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import msgspec
import numpy as np

from cross.expression.language import dtypes
from toolkit.errors import ModelError
from toolkit.model.bounds import Interval
from toolkit.model.graph import Array, Attribute, GraphBuilder, Value, computed_in
from toolkit.model.refusals import TENSORS_ONLY, NodeRefused

FLOATS = frozenset(dtypes.FLOATS)
INTEGERS = frozenset(dtypes.INTEGERS)
TRUTH = frozenset({"bool"})
NUMBERS = FLOATS | INTEGERS
VALUES = NUMBERS | TRUTH


class Operand(msgspec.Struct, frozen=True):
    """A value that an ONNX node reads or writes; `data` when it is known ahead of time.

    Else `interval` says between what its elements lie, integers, where something says so.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Array | None = None
    interval: Interval | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)


class Source(msgspec.Struct, frozen=True):
    """An ONNX node with its operands' types. `opset` decides what defaults and inputs mean."""

    model: str
    name: str
    op: str
    opset: int
    attributes: Mapping[str, object]
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand | None, ...]

    def refuse(self, what: str, remedy: str = "export the model without it") -> ModelError:
        """The error for something this tool does not support."""
        return NodeRefused(self.model, self.name, self.op, what, remedy)

    def invalid(self, what: str) -> ModelError:
        """The error for a node that contradicts its operands or ONNX's definition of it."""
        return self.refuse(what, "export the model again")

    def integer(self, key: str, default: int) -> int:
        return int(self._attribute(key, default, int, "an integer"))

    def number(self, key: str, default: float) -> float:
        return float(self._attribute(key, default, int | float, "a number"))

    def numbers(self, key: str) -> tuple[float, ...]:
        return tuple(float(item) for item in self._attribute(key, (), list | tuple, "a list"))

    def text(self, key: str, default: str) -> str:
        value = self._attribute(key, default, bytes | str, "a text")
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def integers(self, key: str, default: Sequence[int]) -> tuple[int, ...]:
        return tuple(int(item) for item in self._attribute(key, default, list | tuple, "a list"))

    def _attribute(self, key: str, default: object, kind: Any, what: str) -> Any:
        value = self.attributes.get(key, default)
        if not isinstance(value, kind):
            raise self.invalid(f"attribute {key} must be {what}, found {value!r}")
        return value

    def input(self, position: int) -> Operand:
        """An operand that must be there."""
        found = self.optional(position)
        if found is None:
            raise self.invalid(f"input {position} is missing")
        return found

    def optional(self, position: int) -> Operand | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def known(self, position: int, what: str) -> Array | None:
        """The data of an optional input that must be known ahead of time.

        Raises:
            ModelError: it depends on the model's inputs.
        """
        operand = self.optional(position)
        if operand is None:
            return None
        if operand.data is None:
            raise self.refuse(
                f"its {what} (input {operand.name!r}) must be a constant, found one that is computed"
            )
        return operand.data

    def known_integers(self, position: int, what: str) -> tuple[int, ...] | None:
        data = self.known(position, what)
        return None if data is None else tuple(int(item) for item in data.ravel().tolist())

    def bounded(self, position: int, what: str) -> Interval:
        """Between what the elements of an input that says a size lie.

        Raises:
            ModelError: nothing says how large they may be.
        """
        operand = self.input(position)
        if operand.data is not None:
            return Interval(operand.data, operand.data)
        if operand.interval is None:
            raise self.refuse(
                f"its {what} (input {operand.name!r}) is computed, without a bound", TENSORS_ONLY
            )
        return operand.interval

    @property
    def output(self) -> Operand:
        found = self.outputs[0] if self.outputs else None
        if found is None:
            raise self.invalid("it has no output")
        return found

    def only_first_output(self) -> None:
        """Refuse a node whose further outputs are asked for."""
        for operand in self.outputs[1:]:
            if operand is not None:
                raise self.refuse(
                    f"its output {operand.name!r} is not supported, only {self.output.name!r} is"
                )

    def number_as(self, build: GraphBuilder, stem: str, number: float) -> str:
        """A constant of one element in the output's dtype.

        Raises:
            ModelError: the dtype does not hold the number.
        """
        data = np.asarray(number).astype(computed_in(self.output.dtype))
        if self.output.dtype in INTEGERS and data != number:
            raise self.refuse(f"{stem} {number} is no {self.output.dtype}", "cast its data to float32")
        return build.constant(f"{self.output.name}/{stem}", data)

    def emit(
        self,
        build: GraphBuilder,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
        shape: Sequence[int] | None = None,
        dtype: str = "",
    ) -> str:
        """Append a canonical node: the node's own output, or with `shape` an intermediate of that shape.

        An intermediate has the `dtype`, by default the output's; a Reshape or Transpose of a constant is one.

        Raises:
            ModelError: it computes something from nothing, or is a Reshape that does not keep the number of
                elements, which ONNX's checker lets pass.
        """
        wanted = self.output.shape if shape is None else tuple(shape)
        empty = [name for name in inputs if not build.values[name].elements]
        if empty and 0 not in wanted:
            shape_text = list(build.values[empty[0]].shape)
            raise self.refuse(f"{empty[0]!r} of the shape {shape_text} has no elements")
        if op == "Reshape":
            found = build.values[inputs[0]].shape
            if math.prod(found) != math.prod(wanted):
                raise self.invalid(
                    f"expected {math.prod(wanted)} elements for {list(wanted)}, found {math.prod(found)} in "
                    f"{list(found)}"
                )
        known = build.values[inputs[0]].data if shape is not None else None
        if known is not None and op == "Reshape":
            return build.constant(f"{inputs[0]}/reshaped", known.reshape(wanted))
        if known is not None and op == "Transpose":
            perm = (attributes or {})["perm"]
            assert isinstance(perm, tuple)
            return build.constant(f"{inputs[0]}/transposed", known.transpose(perm))
        if shape is None:
            return self.give(build, self.output, op, inputs, attributes)
        stem = next((item.name for item in self.outputs if item is not None), self.name)
        value = Value(build.fresh(f"{stem}/{op}"), wanted, dtype or self.output.dtype)
        return build.emit(op, inputs, value, attributes, self.name)

    def give(
        self,
        build: GraphBuilder,
        output: Operand,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Append the canonical node that computes one of the node's outputs.

        Raises:
            ModelError: a size of it is negative.
        """
        if min(output.shape, default=0) < 0:
            raise self.invalid(f"its output {output.name!r} would have the shape {list(output.shape)}")
        value = Value(output.name, output.shape, output.dtype, source=output.name)
        return build.emit(op, inputs, value, attributes, self.name)


class Emitter(msgspec.Struct, frozen=True):
    """Appends intermediates of an ONNX node to a graph; what is known ahead of time is computed at once."""

    source: Source
    build: GraphBuilder

    def shape(self, name: str) -> tuple[int, ...]:
        return self.build.values[name].shape

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        attributes: Mapping[str, Attribute] | None = None,
        dtype: str = "",
    ) -> str:
        """An intermediate, by default of the dtype of its last input."""
        dtype = dtype or self.build.values[inputs[-1]].dtype
        return self.source.emit(self.build, op, inputs, attributes, shape, dtype)

    def constant(self, stem: str, data: object, dtype: str = "int64") -> str:
        return self.build.constant(f"{self.source.name}/{stem}", np.asarray(data, dtype))

    def shaped(self, name: str, shape: Sequence[int]) -> str:
        return self.emit("Reshape", [name], shape)

    def transposed(self, name: str, perm: tuple[int, ...]) -> str:
        return self.emit("Transpose", [name], [self.shape(name)[axis] for axis in perm], {"perm": perm})

    def part(self, name: str, axis: int, start: int, stop: int) -> str:
        """The elements from `start` to `stop` along an axis."""
        value = self.build.values[name]
        shape = (*value.shape[:axis], stop - start, *value.shape[axis + 1 :])
        if shape == value.shape:
            return name
        if value.data is not None:
            cut = (slice(None),) * axis + (slice(start, stop),)
            return self.build.constant(f"{name}/part", value.data[cut])
        starts = tuple(start if dimension == axis else 0 for dimension in range(len(shape)))
        slicing: dict[str, Attribute] = {"starts": starts, "steps": (1,) * len(shape), "shape": shape}
        return self.emit("Slice", [name], shape, slicing)


Import = Callable[[Source, GraphBuilder], None]


class Importer(msgspec.Struct, frozen=True):
    """How one ONNX operator is imported, and which attributes it may carry.

    `shape` gives the shape of the output where ONNX's shape inference may be wrong or gives none. `folds`
    tells that on constants, too, it is computed as imported: ONNX's reference evaluator differs from the
    specification. `like` names the operator on floats whose outputs have the shapes of an operator of ours,
    which reads the same inputs, as far as they must be there, and gives int32, or float32 where the first one
    is such.
    """

    function: Import
    attributes: Set[str] = frozenset()
    dtypes: frozenset[str] = FLOATS
    extra_outputs: bool = False
    shape: Callable[[Source], tuple[int, ...]] | None = None
    folds: bool = False
    like: str = ""

    def run(self, source: Source, build: GraphBuilder) -> None:
        """Check attributes, dtypes and shapes, then emit.

        Raises:
            ModelError: something about the node is not supported.
        """
        for key in source.attributes:
            if key not in self.attributes:
                raise source.refuse(
                    f"attribute {key} is not supported; supported are "
                    f"{', '.join(sorted(self.attributes)) or 'none'}"
                )
        for operand in (*source.inputs, *source.outputs[: None if self.extra_outputs else 1]):
            if operand is None:
                continue
            if operand.data is None and operand.dtype not in self.dtypes:
                raise source.refuse(
                    f"{operand.name!r} has dtype {operand.dtype}; expected "
                    f"{' or '.join(sorted(self.dtypes))}",
                    "cast it in the model",
                )
        if not self.extra_outputs:
            source.only_first_output()
        self.function(source, build)
