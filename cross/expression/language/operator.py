"""Operators: an expression from placeholders to one output tensor, with a key that names its meaning."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from functools import cached_property

import msgspec

from cross.errors import ExpressionError
from cross.expression.language.dtypes import FLOATS, INTEGERS
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.tensor import Axis, Read, Reduce, Tensor, reads_in
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Lookup, Select, Term

KEY_VERSION = 1


class Subview(msgspec.Struct, frozen=True):
    """Where a tensor lies in a larger one of the same rank: its first element at `starts` of `shape`."""

    shape: tuple[int, ...]
    starts: tuple[int, ...]


class Operator(msgspec.Struct, frozen=True, eq=False, dict=True):
    """e in the AutoTVM paper: what to compute, with shapes and dtypes fixed.

    `constants` are positions in `inputs` whose values are known before the program runs (weights), so
    that a schedule may lay them out ahead of time. With a `destination` the program's last argument is a
    tensor of that shape, into which the output is written; without one it is the output.
    """

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    constants: frozenset[int] = frozenset()
    destination: Subview | None = None

    def __post_init__(self) -> None:
        if self.output.body is None:
            raise ExpressionError(f"operator {self.name}: the output {self.output.name} is a placeholder")
        found = [tensor for tensor in reachable(self.output) if tensor.body is None]
        missing = [tensor.name for tensor in found if tensor not in self.inputs]
        if missing:
            raise ExpressionError(
                f"operator {self.name}: reads placeholders that are not among its inputs: "
                f"{', '.join(missing)}"
            )
        if self.destination is not None and not _fits(self.output.shape, self.destination):
            raise ExpressionError(
                f"operator {self.name}: an output of shape {list(self.output.shape)} does not fit into "
                f"{list(self.destination.shape)} at {list(self.destination.starts)}"
            )

    @property
    def written(self) -> tuple[int, ...]:
        """The shape of the program's last argument."""
        return self.output.shape if self.destination is None else self.destination.shape

    @property
    def part(self) -> tuple[slice, ...]:
        """Where the output lies in the program's last argument."""
        starts = (0,) * len(self.output.shape) if self.destination is None else self.destination.starts
        return tuple(
            slice(start, start + extent) for start, extent in zip(starts, self.output.shape, strict=True)
        )

    @cached_property
    def stages(self) -> tuple[Tensor, ...]:
        """The computed tensors, producers before consumers; the output is last."""
        return tuple(tensor for tensor in reachable(self.output) if tensor.body is not None)

    @property
    def reduces(self) -> bool:
        """Whether a stage has a reduction."""
        return any(stage.reduce_axes for stage in self.stages)

    @cached_property
    def key(self) -> str:
        """Sixteen hex digits that depend on structure, shapes and dtypes, not on names."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()[:16]

    @cached_property
    def canonical(self) -> str:
        """The expression with tensors and axes renamed by position."""
        tensors = {tensor: f"P{position}" for position, tensor in enumerate(self.inputs)}
        lines = [f"v{KEY_VERSION}"]
        for position, tensor in enumerate(self.inputs):
            mark = " const" if position in self.constants else ""
            lines.append(f"P{position}: {tensor.dtype}{list(tensor.shape)}{mark}")
        for position, stage in enumerate(self.stages):
            axes = {axis: f"s{i}" for i, axis in enumerate(stage.axes)}
            axes |= {axis: f"r{i}:{axis.extent}" for i, axis in enumerate(stage.reduce_axes)}
            assert stage.body is not None
            lines.append(
                f"T{position}: {stage.dtype}{list(stage.shape)} = {to_text(stage.body, tensors, axes)}"
            )
            tensors[stage] = f"T{position}"
        if self.destination is not None:
            lines.append(f"into {list(self.destination.shape)} at {list(self.destination.starts)}")
        return "\n".join(lines)

    @cached_property
    def flops(self) -> int:
        """Arithmetic operations on values of one run, floats or integers: every node once per evaluation.

        A multiply-add of a reduction counts as two, one of four bytes as eight, index arithmetic as none.
        """
        total = 0
        for stage in self.stages:
            assert stage.body is not None
            count = _operations(stage.body)[0] + isinstance(stage.body, Reduce)
            total += count * stage.elements * math.prod(axis.extent for axis in stage.reduce_axes)
        return total


def _fits(shape: tuple[int, ...], destination: Subview) -> bool:
    if not len(shape) == len(destination.shape) == len(destination.starts):
        return False
    ends = (start + extent for start, extent in zip(destination.starts, shape, strict=True))
    return min(destination.starts, default=0) >= 0 and all(map(int.__le__, ends, destination.shape))


def _operations(term: Term) -> tuple[int, bool]:
    """Arithmetic operations of a term, and whether elements of tensors are among its operands."""
    if isinstance(term, Read):
        return 0, True
    parts = [_operations(part) for part in term.parts]
    count, values = sum(part for part, _ in parts), any(read for _, read in parts)
    match term:
        case Binary(name) | Call(name) if term.dtype in FLOATS or (values and term.dtype in INTEGERS):
            count += OPERATIONS[name].cost
    return count, values


def reads(stage: Tensor) -> tuple[Read, ...]:
    """All reads in the body of a computed tensor, in order of appearance."""
    return () if stage.body is None else tuple(reads_in(stage.body))


def reachable(output: Tensor) -> tuple[Tensor, ...]:
    """The output and everything it is computed from, producers first, in a fixed order."""
    done: dict[Tensor, None] = {}
    pending: list[tuple[Tensor, bool]] = [(output, False)]
    while pending:
        tensor, expanded = pending.pop()
        if tensor in done:
            continue
        if expanded:
            done[tensor] = None
            continue
        pending.append((tensor, True))
        producers = dict.fromkeys(read.tensor for read in reads(tensor))
        pending.extend((producer, False) for producer in reversed(list(producers)))
    return tuple(done)


def to_text(term: Term, tensors: dict[Tensor, str], axes: dict[Axis, str]) -> str:
    """The term as text with the given names."""

    def join(parts: Iterable[Term]) -> str:
        return ", ".join(to_text(part, tensors, axes) for part in parts)

    match term:
        case Int(value) | Const(value, "float32"):
            return repr(value)
        case Const(value, dtype):
            return f"{value!r}:{dtype}"
        case Axis():
            return axes.get(term, term.name)
        case Read(tensor, indices):
            return f"{tensors.get(tensor, tensor.name)}[{join(indices)}]"
        case Lookup(matrix, row, column, dtype):
            rows = ", ".join("[" + ", ".join(map(repr, line)) + "]" for line in matrix)
            kind = "" if dtype == "float32" else f":{dtype}"
            return f"[{rows}]{kind}[{join((row, column))}]"
        case Binary(op, left, right):
            if op in ("min", "max"):
                return f"{op}({join((left, right))})"
            return f"({to_text(left, tensors, axes)} {op} {to_text(right, tensors, axes)})"
        case Cast(dtype, value):
            return f"{dtype}({to_text(value, tensors, axes)})"
        case Reduce(combiner, body, reduce_axes):
            return f"{combiner}[{join(reduce_axes)}]({to_text(body, tensors, axes)})"
        case Call(function, arguments):
            return f"{function}({join(arguments)})"
        case Select():
            return f"select({join(term.parts)})"
        case _:
            raise ExpressionError(f"unknown term {type(term).__name__}")
