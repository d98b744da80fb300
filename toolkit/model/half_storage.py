"""What of a network is stored as half floats where a target asks for it (`storage = "float16"`).

Weights and what operators hand to one another take half the memory and bandwidth; every operator computes in
float32 (cross/expression/half_storage.py). The network's own inputs and outputs stay as they are, and so do
vectors such as biases, which cost little and are added to large sums, and weights that half floats cannot
hold. Start at `stored_for`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec.structs import replace

from boards.target import Target
from cross.expression.rewrites.half_storage import with_half_storage
from toolkit.model.graph import Graph, Group, Region, Value

LARGEST_HALF = float(np.finfo(np.float16).max)


def stored_for(graph: Graph, target: Target) -> Graph:
    """The fused graph with its values stored as the target wants them."""
    if target.storage != "float16":
        return graph
    own = {graph.root(name) for name in (*graph.inputs, *graph.outputs)}
    own |= {
        graph.root(name)
        for step in graph.steps
        if isinstance(step, Region)
        for name in (*step.inputs, *step.outputs)
    }
    halves = {
        name
        for name, value in graph.values.items()
        if value.dtype == "float32" and graph.root(name) not in own and _fits(value)
    }
    values = {name: _half(value) if name in halves else value for name, value in graph.values.items()}
    return replace(graph, values=values, steps=tuple(_stored(step, halves, target) for step in graph.steps))


def _fits(value: Value) -> bool:
    """Whether a value is computed at run time, or a matrix of weights that half floats can hold."""
    if value.data is None:
        return True
    return value.data.ndim > 1 and float(np.abs(value.data).max(initial=0.0)) <= LARGEST_HALF


def _half(value: Value) -> Value:
    data = None if value.data is None else value.data.astype(np.float16)
    return replace(value, dtype="float16", data=data)


def _stored(step: Group | Region, halves: Collection[str], target: Target) -> Group | Region:
    if isinstance(step, Region):
        bodies = [stored_for(body, target) for body in step.control.bodies]
        return replace(step, control=step.control.with_bodies(bodies))
    inputs = [position for position, name in enumerate(step.inputs) if name in halves]
    return replace(step, operator=with_half_storage(step.operator, inputs, step.output in halves))
