"""Between what the integers lie that a model computes sizes from: the most there may be of something.

A bound begins at Min and Clip against a constant, and at the shape of a value whose size depends on data, of
which the most is known. It follows through what exporters put between shapes and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from toolkit.model.function_bodies import OnnxNode
from toolkit.model.graph import Array

LEAST: Final = -(1 << 31)  # of a number of which only the most is known


class Interval(msgspec.Struct, frozen=True):
    """The least and the most of each element of a value: int64 arrays of its shape."""

    low: Array
    high: Array


Find = Callable[[str], Interval | None]
Evaluate = Callable[[Sequence[Array]], Array]
# which inputs may be intervals, "all" or the first one; the others are constants
RISING: Final = {
    **dict.fromkeys(("Add", "Max", "Concat"), "all"),
    **dict.fromkeys(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Gather"), "first"),
    **dict.fromkeys(("Slice", "Sub", "ReduceMax", "ReduceMin", "ReduceSum"), "first"),
}
SCALING: Final = frozenset({"Mul", "Div"})  # by what is positive and known
ENDS: Final[tuple[Callable[[Interval], Array], ...]] = (lambda item: item.low, lambda item: item.high)


def interval_of(node: OnnxNode, find: Find, evaluate: Evaluate, shape: tuple[int, ...]) -> Interval | None:
    """Between what the elements of a node's output of this shape lie; None where nothing says so.

    `find` gives the interval of an input; `evaluate` gives the output, both for integers.
    """
    op, names = node.operator, [item for item in node.proto.input if item]
    if op == "Clip":  # the data, and the largest they may be
        names = [node.proto.input[0], *node.proto.input[2:]]
    inputs = [item for item in map(find, names) if item is not None]
    if op in ("Min", "Clip"):
        if not inputs:
            return None
        high = np.minimum.reduce(np.broadcast_arrays(*(item.high for item in inputs)))
        return Interval(np.broadcast_to(np.int64(LEAST), shape), np.broadcast_to(high, shape))
    if len(inputs) < len(names):
        return None
    rest = [] if RISING.get(op) == "all" else inputs[1:]
    fixed = all((item.low == item.high).all() for item in rest)
    positive = all((item.low > 0).all() for item in rest)
    if not fixed or not (op in RISING or (op in SCALING and positive)):
        return None
    low, high = (evaluate([end(item) for item in inputs]) for end in ENDS)
    return Interval(np.maximum(low, LEAST), high)
