"""Operators as text, to keep beside measurements: what is needed to build the same schedule space again.

`to_json` writes every tensor with its names, axes and body; `from_json` reads it back. Unlike the key, the
text keeps names, because knobs are called after axes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from cross.errors import ExpressionError
from cross.expression.language.dtypes import INDEX
from cross.expression.language.operator import Operator, Subview, reachable
from cross.expression.language.tensor import Axis, AxisKind, Read, Reduce, Tensor
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Lookup, Select, Term, constant

DESCRIPTION_VERSION: Final = 1

Numbers = Mapping[Tensor, int]
Places = Mapping[Axis, int]


def to_json(operator: Operator) -> str:
    """The operator as one line of JSON."""
    tensors = tuple(dict.fromkeys((*operator.inputs, *reachable(operator.output))))
    numbers = {tensor: number for number, tensor in enumerate(tensors)}
    content: dict[str, Any] = {
        "description_version": DESCRIPTION_VERSION,
        "name": operator.name,
        "inputs": [numbers[tensor] for tensor in operator.inputs],
        "constants": sorted(operator.constants),
        "tensors": [_tensor(tensor, numbers) for tensor in tensors],
    }
    if operator.destination is not None:
        content["into"] = [list(operator.destination.shape), list(operator.destination.starts)]
    return json.dumps(content, separators=(",", ":"))


def from_json(text: str) -> Operator:
    """The operator that `to_json` wrote.

    Raises:
        ExpressionError: the text is of another version, or describes no operator.
    """
    try:
        content = json.loads(text)
        version = content["description_version"]
        if version != DESCRIPTION_VERSION:
            raise ExpressionError(
                f"an operator described in version {version}: this tool reads version {DESCRIPTION_VERSION}"
            )
        tensors: list[Tensor] = []
        for described in content["tensors"]:
            tensors.append(_parsed_tensor(described, tensors))
        inputs = tuple(tensors[number] for number in content["inputs"])
        places = [tuple(map(int, item)) for item in content.get("into", ())]
        into = Subview(*places) if places else None
        return Operator(str(content["name"]), inputs, tensors[-1], frozenset(content["constants"]), into)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ExpressionError(
            f"this is no description of an operator ({type(error).__name__}: {error}): {text[:60]!r}"
        ) from error


def _tensor(tensor: Tensor, numbers: Numbers) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype}
    if tensor.body is not None:
        described["axes"] = [axis.name for axis in tensor.axes]
        described["reduce"] = [[axis.name, axis.extent] for axis in tensor.reduce_axes]
        places = {axis: place for place, axis in enumerate((*tensor.axes, *tensor.reduce_axes))}
        described["body"] = _term(tensor.body, numbers, places)
    return described


def _term(term: Term, numbers: Numbers, places: Places) -> list[Any]:
    """The term as nested lists, each begun by the name of its node."""

    def inner(*terms: Term) -> list[list[Any]]:
        return [_term(item, numbers, places) for item in terms]

    match term:
        case Int(value):
            return ["const", value, INDEX]
        case Const(value, kind):
            finite = not isinstance(value, float) or math.isfinite(value)
            return ["const", value if finite else repr(value), kind]
        case Axis():
            return ["axis", places[term]]
        case Read(tensor, indices):
            return ["read", numbers[tensor], *inner(*indices)]
        case Lookup(matrix, row, column, kind):
            return ["lookup", [list(line) for line in matrix], kind, *inner(row, column)]
        case Binary(op, left, right):
            return ["binary", op, *inner(left, right)]
        case Call(function, arguments):
            return ["call", function, *inner(*arguments)]
        case Select(condition, then, otherwise):
            return ["select", *inner(condition, then, otherwise)]
        case Cast(kind, value):
            return ["cast", kind, *inner(value)]
        case Reduce(combiner, body, _):
            return ["reduce", combiner, *inner(body)]
        case _:
            raise ExpressionError(f"unknown term {type(term).__name__}")


def _parsed_tensor(described: dict[str, Any], before: list[Tensor]) -> Tensor:
    name, dtype = str(described["name"]), str(described["dtype"])
    shape = tuple(int(extent) for extent in described["shape"])
    if "body" not in described:
        return Tensor(name, shape, dtype)
    axes = tuple(Axis(str(axis), extent) for axis, extent in zip(described["axes"], shape, strict=True))
    reduce_axes = tuple(Axis(str(axis), int(size), AxisKind.REDUCE) for axis, size in described["reduce"])
    body = _parsed(described["body"], before, axes + reduce_axes, reduce_axes)
    if body.dtype != dtype:
        raise ValueError(f"tensor {name}: expected a body of {dtype}, found {body.dtype}")
    return Tensor(name, shape, dtype, axes, body)


def _parsed(
    described: list[Any], tensors: list[Tensor], axes: tuple[Axis, ...], reduce_axes: tuple[Axis, ...]
) -> Term:
    def term(item: list[Any]) -> Term:
        return _parsed(item, tensors, axes, reduce_axes)

    def inner(items: list[Any]) -> tuple[Term, ...]:
        return tuple(term(item) for item in items)

    node, *rest = described
    makers: dict[str, Callable[[], Term]] = {
        "const": lambda: constant(float(rest[0]) if isinstance(rest[0], str) else rest[0], rest[1]),
        "axis": lambda: axes[rest[0]],
        "read": lambda: _read(tensors[rest[0]], inner(rest[1:])),
        "lookup": lambda: Lookup(
            tuple(tuple(line) for line in rest[0]), term(rest[2]), term(rest[3]), rest[1]
        ),
        "binary": lambda: Binary(rest[0], *inner(rest[1:])),
        "call": lambda: Call(rest[0], inner(rest[1:])),
        "select": lambda: Select(*inner(rest)),
        "cast": lambda: Cast(rest[0], *inner(rest[1:])),
        "reduce": lambda: Reduce(rest[0], term(rest[1]), reduce_axes),
    }
    return makers[node]()


def _read(tensor: Tensor, indices: tuple[Term, ...]) -> Read:
    if len(indices) != len(tensor.shape):
        raise ValueError(
            f"tensor {tensor.name} has {len(tensor.shape)} dimensions, found {len(indices)} indices"
        )
    return Read(tensor, indices)
