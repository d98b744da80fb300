"""The distinct operators of a graph: each is tuned once, however many groups compute it."""

from __future__ import annotations

from collections import Counter

import msgspec

from cross.expression.language.operator import Operator
from toolkit.model.graph import Graph
from toolkit.model.labels import short_name, short_places


class DistinctOperator(msgspec.Struct, frozen=True):
    """An operator of a network.

    It runs `count` times, `groups` names what computes it, in running order; `place` is the first of them in
    few characters.
    """

    operator: Operator
    count: int
    groups: tuple[str, ...]
    place: str

    @property
    def name(self) -> str:
        """What it computes and where, in one line for people: `conv 3x3 s2 112x112 64->128 (layer2/Conv)`."""
        return f"{short_name(self.operator)} ({self.place})"


def distinct_operators(graph: Graph) -> list[DistinctOperator]:
    """The distinct operators of all groups of a graph in the order of their first use."""
    groups: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    operators: dict[str, Operator] = {}
    for group, times in graph.every_group():
        key = group.operator.key
        operators.setdefault(key, group.operator)
        groups.setdefault(key, []).append(group.name)
        counts[key] += times
    places = short_places([found[0] for found in groups.values()])
    return [
        DistinctOperator(operator, counts[key], tuple(groups[key]), place)
        for (key, operator), place in zip(operators.items(), places, strict=True)
    ]
