"""Which nodes may read a value whose size depends on data: those that go by the slice.

Such a node treats each slice along the counted dimension alone, so that what it makes of those that do not
count is cut off with them. Any other node is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from cross.expression.families import elementwise
from toolkit.model.bounds import Interval
from toolkit.model.graph import Count, GraphBuilder, Value
from toolkit.model.source import Operand, Source

Counts = Mapping[str, Count]
Rule = Callable[[Source, int, Operand, int], int | None]


def following(source: Source, counts: Counts) -> Count:
    """The count of a node's outputs, of which `counts` has some inputs.

    Raises:
        NodeRefused: a slice of its output depends on several slices, or on what other values count.
    """
    found: set[Count | None] = set()
    for position, operand in enumerate(source.inputs):
        if operand is not None and operand.name in counts:
            count = counts[operand.name]
            dimension = RULES.get(source.op, _nowhere)(source, position, operand, count.dimension)
            found.add(None if dimension is None else Count(count.by, dimension))
    count_of_all = found.pop() if len(found) == 1 else None
    if count_of_all is None or not _fits_others(source, counts, count_of_all.dimension):
        raise refusal(source, counts)
    return count_of_all


def refusal(source: Source, counts: Counts) -> Exception:
    """The error for a node that reads a value whose size depends on data."""
    name = next(item.name for item in source.inputs if item is not None and item.name in counts)
    return source.refuse(
        f"it reads {name!r}, whose size depends on data, and does not work on each of its "
        f"slices along dimension {counts[name].dimension} alone",
        "make that value an output of the model, and cut the model behind it",
    )


def shape_of_counted(build: GraphBuilder, output: Value, count: Count, most: Sequence[int]) -> Interval:
    """Emit `output`, a part of a shape, in which the dimension of `count` is computed, the others `most`.

    Returns between what its elements lie.
    """
    place = count.dimension
    parts = [
        build.constant(f"{output.name}/extents", np.asarray(extents, np.int64))
        for extents in (most[:place], most[place + 1 :])
        if extents
    ]
    own = Value(build.fresh(f"{output.name}/count"), (1,), "int64")
    parts.insert(min(place, 1), build.emit("Reshape", [count.by], own))
    build.emit(
        "Concat" if len(parts) > 1 else "Identity", parts, output, {"axis": 0} if len(parts) > 1 else {}
    )
    high = np.asarray(most, np.int64)
    return Interval(np.where(np.arange(len(most)) == place, 0, high), high)


def _fits_others(source: Source, counts: Counts, dimension: int) -> bool:
    """Whether an elementwise node or Concat reads no other values along the counted dimension."""
    others = [item for item in source.inputs if item is not None and item.name not in counts]
    if source.op == "Concat":
        return not others
    rank = source.output.rank
    return source.op not in ELEMENTWISE or all(
        item.rank < rank - dimension or item.shape[dimension - rank] == 1 for item in others
    )


def _nowhere(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    return None


def _aligned(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    place = source.output.rank - operand.rank + dimension
    return place if source.output.shape[place] == operand.shape[dimension] else None


def _transposed(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    return source.integers("perm", tuple(range(operand.rank))[::-1]).index(dimension)


def _reshaped(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    """Dimensions of extent 1 come and go."""
    wide, output = ([d for d, e in enumerate(item.shape) if e != 1] for item in (operand, source.output))
    same = [operand.shape[d] for d in wide] == [source.output.shape[d] for d in output]
    return output[wide.index(dimension)] if same and dimension in wide else None


def _gathered(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    axis = source.integer("axis", 0) % source.input(0).rank
    if position == 1:
        return axis + dimension
    return None if axis == dimension else dimension + (source.input(1).rank - 1) * (dimension > axis)


def _gathered_tuples(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    return dimension if position == 1 and dimension < operand.rank - 1 else None


def _sliced(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    given = source.known_integers(3, "axes") if source.opset >= 10 else source.integers("axes", ())
    axes = given or range(len((source.known_integers(1, "starts") or ()) or source.integers("starts", ())))
    return None if dimension in [axis % operand.rank for axis in axes] else dimension


def _along_another(source: Source, position: int, operand: Operand, dimension: int) -> int | None:
    return None if source.integer("axis", 0) % operand.rank == dimension else dimension


ELEMENTWISE: Final = {*elementwise.UNARY, *elementwise.BINARY, "Cast", "Where", "Sum", "Mean", "BitShift"}
RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(ELEMENTWISE, _aligned),
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshaped),
    **dict.fromkeys(("Concat", "Split"), _along_another),
    "Transpose": _transposed,
    "Gather": _gathered,
    "GatherND": _gathered_tuples,
    "Slice": _sliced,
}
