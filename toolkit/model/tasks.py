"""What there is to tune in a graph: each distinct operator once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cross.expression.language.operator import Operator
from toolkit.model.graph import Graph


@dataclass(frozen=True, slots=True)
class TuningTask:
    """One distinct operator of a network.

    It runs `count` times, `groups` names what computes it, in running order; `flops` is the work of a run.
    """

    operator: Operator
    key: str
    count: int
    groups: tuple[str, ...]
    flops: int

    @property
    def name(self) -> str:
        """The name of the first group, for people."""
        return self.groups[0]


def tasks(graph: Graph) -> list[TuningTask]:
    """The distinct operators of all groups of a graph in the order of their first use."""
    found: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    operators: dict[str, Operator] = {}
    for group, times in graph.every_group():
        key = group.operator.key
        operators.setdefault(key, group.operator)
        found.setdefault(key, []).append(group.name)
        counts[key] += times
    return [
        TuningTask(operator, key, counts[key], tuple(found[key]), operator.flops)
        for key, operator in operators.items()
    ]
