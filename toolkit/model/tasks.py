"""What there is to tune in a graph: each distinct operator once."""

from __future__ import annotations

from dataclasses import dataclass

from cross.expression.language.operator import Operator
from toolkit.model.graph import Graph


@dataclass(frozen=True, slots=True)
class TuningTask:
    """One distinct operator of a network.

    `count` groups compute it, `groups` names them in running order, `flops` is the work of one run.
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
    """The distinct operators of `graph.groups` in the order of their first use."""
    found: dict[str, list[str]] = {}
    operators: dict[str, Operator] = {}
    for group in graph.groups:
        key = group.operator.key
        operators.setdefault(key, group.operator)
        found.setdefault(key, []).append(group.name)
    return [
        TuningTask(operator, key, len(found[key]), tuple(found[key]), operator.flops)
        for key, operator in operators.items()
    ]
