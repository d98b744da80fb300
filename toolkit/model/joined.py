"""Concatenations without copies: what is joined is written where the whole lies.

A Concat that nothing follows in its group would only move bytes. Its operands' groups write straight into
its result instead, each into a part of it (`Operator.destination`); an operand that somebody else reads too,
or that no group can write in place, is copied there by a group of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cross.expression.language.operator import Destination, Operator
from toolkit.model.chains import Chain
from toolkit.model.graph import Graph

LEAST_SHARE = 0.5  # of the bytes; below it one kernel that copies everything is better than several that copy


@dataclass(frozen=True, slots=True)
class Part:
    """An operand of a Concat: which value it becomes a part of, along which dimension, and from where on."""

    whole: str
    axis: int
    start: int


def joined_parts(graph: Graph, chains: Iterable[Chain]) -> dict[str, tuple[Part, ...]]:
    """For every Concat that is a group of its own, by its result: its operands as parts, in their order."""
    found: dict[str, tuple[Part, ...]] = {}
    for chain in chains:
        (node, *others), start = chain.members, 0
        if node.op != "Concat" or others or not graph.values[node.output].elements:
            continue
        parts: list[Part] = []
        for name in node.inputs:
            parts.append(Part(node.output, node.integer("axis"), start))
            start += graph.values[name].shape[parts[-1].axis]
        found[node.output] = tuple(parts)
    return found


def destination(graph: Graph, name: str, part: Part, operator: Operator) -> Destination | None:
    """Where the operator that makes a value writes it as a part; None where its output has other rows.

    Before the axis of the concatenation both count the same rows; a row of the value is a run of elements in
    a row of the whole.
    """
    shape, whole = graph.values[name].shape, graph.values[part.whole].shape
    rows, behind = math.prod(shape[: part.axis]), math.prod(shape[part.axis + 1 :])
    before = 1
    for axis, extent in enumerate(operator.output.shape):
        step = math.prod(operator.output.shape[axis + 1 :])
        row, start = whole[part.axis] * behind, part.start * behind
        if before == rows and row % step == start % step == 0:
            outer, inner = operator.output.shape[:axis], operator.output.shape[axis + 1 :]
            starts = (*(0 for _ in outer), start // step, *(0 for _ in inner))
            return Destination((*outer, row // step, *inner), starts)
        before *= extent
    return None


def worth_joining(graph: Graph, names: Iterable[str], placed: Mapping[str, Destination]) -> bool:
    """Whether so much is written in place that copying the rest one by one costs less than before."""
    sizes = {name: graph.values[name].nbytes for name in names}
    return sum(sizes[name] for name in placed) >= LEAST_SHARE * sum(sizes.values())
