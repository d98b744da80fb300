"""Dimensions joined where an operator goes over them alike.

Parts and chains come first: a part lies between rows of its whole, and an operator that hands rows to a
window computes them row by row. Start at `dimensions_joined_for`; how an operator changes is in
cross/expression/rewrites/joined_dimensions.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from boards.target import Target
from cross.expression.rewrites.joined_dimensions import with_joined_dimensions
from toolkit.model.graph import Graph, Group, Region


def dimensions_joined_for(graph: Graph, target: Target) -> Graph:
    """The fused graph with dimensions joined in every operator that goes over them alike. Operators that
    reduce keep theirs on a GPU, whose blocks of threads are tiles of rows and columns.
    """
    return replace(graph, steps=tuple(_joined(step, target) for step in graph.steps))


def _joined(step: Group | Region, target: Target) -> Group | Region:
    if isinstance(step, Region):
        bodies = [dimensions_joined_for(body, target) for body in step.control.bodies]
        return replace(step, control=step.control.with_bodies(bodies))
    if step.operator.reduces and target.kind != "cpu":
        return step
    return replace(step, operator=with_joined_dimensions(step.operator))
