"""The distinct operators of a graph: each is tuned once, however many groups compute it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cross.expression.language.operator import Operator
from toolkit.model.graph import Graph


@dataclass(frozen=True, slots=True)
class DistinctOperator:
    """An operator of a network.

    It runs `count` times, `groups` names what computes it, in running order.
    """

    operator: Operator
    count: int
    groups: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the first group, for people."""
        return self.groups[0]


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
    return [
        DistinctOperator(operator, counts[key], tuple(groups[key])) for key, operator in operators.items()
    ]
