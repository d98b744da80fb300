"""How far outputs may lie apart because floats that nobody computes to the last bit are rounded to integers.

In a quantized transformer a layer norm's sums are floats. Where one of its results lies midway between two
integers, a right program may round it to either; the layers behind it make of a step what they make of any
difference. So outputs are computed twice more, with all such floats a little larger and a little smaller
(cross/expression/reference/ties.py): what that changes, a right program may change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cross.expression.language.dtypes import FLOATS
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor
from cross.expression.reference import evaluate
from cross.expression.reference.ties import inexact_stages, nudged_stages
from toolkit.model.graph import Array, Graph, Group
from toolkit.model.reference import Compute, run_reference

Roundings = dict[str, set[Tensor]]
"""By the key of an operator that rounds such floats, those of its inputs that are such floats."""


def roundings_of(graph: Graph) -> Roundings:
    """The operators that round floats which depend on who computes them. Graph inputs are no such floats."""
    found: Roundings = {}
    _follow(graph, set(), found)
    return found


def _follow(graph: Graph, inexact: set[str], found: Roundings) -> None:
    """Add a graph's operators to `found`, and what they compute to `inexact`: names of values."""
    for step in graph.steps:
        if not isinstance(step, Group):
            for body in step.control.bodies:  # what it carries may be inexact from the second run on
                _follow(body, {name for name in body.inputs if body.values[name].dtype in FLOATS}, found)
            inexact |= {graph.root(name) for name in step.outputs if graph.values[name].dtype in FLOATS}
            continue
        operator = step.operator
        read = zip(operator.inputs, step.inputs, strict=True)
        inputs = {tensor for tensor, name in read if graph.root(name) in inexact}
        if nudged_stages(operator, inputs):
            found.setdefault(operator.key, set()).update(inputs)
        if operator.output in inexact_stages(operator, inputs):
            inexact.add(graph.root(step.output))


def rounding_spread(graph: Graph, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> float:
    """How far `outputs`, computed by the reference from `inputs`, may move by these roundings: the largest
    difference of any of them, in parts of its largest element. 0 where there are none."""
    roundings = roundings_of(graph)
    spread = 0.0
    for direction in (-1.0, 1.0) if roundings else ():
        moved = run_reference(graph, inputs, _towards(direction, roundings))
        spread = max([spread, *(_apart(moved[name], outputs[name]) for name in outputs)])
    return spread


def _towards(direction: float, roundings: Roundings) -> Compute:
    """The reference of an operator, with such floats moved in a direction before they are rounded."""

    def compute(operator: Operator, operands: Sequence[Array]) -> Array:
        if (inexact := roundings.get(operator.key)) is None:
            return evaluate(operator, operands)
        return evaluate(operator, operands, direction=direction, inexact=inexact)

    return compute


def _apart(found: Array, expected: Array) -> float:
    """The largest difference of finite elements, in parts of the largest one."""
    both = np.isfinite(found) & np.isfinite(expected)
    ours, theirs = found[both].astype(np.float64), expected[both].astype(np.float64)
    largest = np.abs(theirs).max(initial=0.0)
    return float(np.abs(ours - theirs).max(initial=0.0) / largest) if largest else 0.0
