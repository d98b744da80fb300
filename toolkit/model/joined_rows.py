"""Rows of images joined where an operator goes over them alike, for CPUs.

Chains of operators come first: one that hands rows to a window computes them row by row. Start at
`rows_joined_for`; how an operator changes is in cross/expression/rewrites/joined_rows.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from boards.target import Target
from cross.expression.rewrites.joined_rows import with_joined_rows
from toolkit.model.graph import Graph, Group, Region


def rows_joined_for(graph: Graph, target: Target) -> Graph:
    """The fused graph with the rows of images joined in every operator that sees pixels alike, on a CPU."""
    if target.kind != "cpu":
        return graph
    return replace(graph, steps=tuple(_joined(step, target) for step in graph.steps))


def _joined(step: Group | Region, target: Target) -> Group | Region:
    if isinstance(step, Region):
        bodies = [rows_joined_for(body, target) for body in step.control.bodies]
        return replace(step, control=step.control.with_bodies(bodies))
    return replace(step, operator=with_joined_rows(step.operator))
