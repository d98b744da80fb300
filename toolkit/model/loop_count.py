"""How often a Loop runs where constants alone decide it, as one does that counts up to a length.

TensorFlow's loops over sequences are written so: without a trip count, with a condition that compares a
counter among the carried values with the number of steps, which is known as soon as the shapes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from toolkit.model.constants import EVALUATOR_ERRORS
from toolkit.model.function_bodies import OnnxNode
from toolkit.model.graph import Array
from toolkit.model.live_nodes import live, reads
from toolkit.model.walk import Walk
from toolkit.model.walk_state import SHAPE_DATA_ELEMENTS

MOST_COUNTED: Final = 1 << 14  # runs: a second of ONNX's evaluator


def counted_runs(walk: Walk, node: OnnxNode, graph: Any, begin: Sequence[str], most: int) -> int | None:
    """The number of runs, at least one and at most `most`; None where data decide it, or it is too large.

    `graph` is the body, `begin` names what the loop carries into its first run, in which its condition holds.
    """
    number, state, *formal = (item.name for item in graph.input)
    again, *results = (item.name for item in graph.output)
    nodes, read = _deciding(graph, again, dict(zip(formal, results, strict=False)))
    carried = [place for place, item in enumerate(formal) if item in read]
    made = {item for proto in nodes for item in proto.output} | {item.name for item in graph.initializer}
    around = sorted(read - made - {number, state, *formal})
    constants = {item: walk.builder.values[item].data for item in around if item in walk.builder.values}
    states = {formal[place]: walk.builder.values[begin[place]].data for place in carried}
    known = {item: data for item, data in (constants | states).items() if data is not None}
    if not (carried or number in read) or len(known) < len(around) + len(carried):
        return None
    if any(data.size > SHAPE_DATA_ELEMENTS for data in known.values()):
        return None
    going = {number: np.array(0), state: np.array(True), **known}
    try:
        step = _evaluator(graph, nodes, [again, *(results[place] for place in carried)], going, node.opsets)
        for run in range(min(most, MOST_COUNTED)):
            goes, *after = step.run(None, going)
            if not goes.all():
                return run + 1
            going |= {formal[place]: data for place, data in zip(carried, after, strict=True)}
            going[number] = np.array(run + 1)
    except EVALUATOR_ERRORS:
        return None
    return most if most <= MOST_COUNTED else None


def _deciding(graph: Any, again: str, following: Mapping[str, str]) -> tuple[list[Any], set[str]]:
    """The nodes of the body that its condition `again` depends on, in any run, and the values that they read.

    `following`: by carried value what it is in the next run.
    """
    wanted = {again}
    while True:
        nodes = live(graph.node, wanted)
        read = {item for proto in nodes for item in reads(proto)} | wanted
        more = {result for item, result in following.items() if item in read} - wanted
        if not more:
            return nodes, read
        wanted |= more


def _evaluator(
    graph: Any, nodes: Sequence[Any], outputs: Sequence[str], inputs: Mapping[str, Array],
    opsets: Mapping[str, int],
) -> Any:  # fmt: skip
    """ONNX's reference evaluator of these nodes of the body."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    kinds = {item: onnx.helper.np_dtype_to_tensor_dtype(data.dtype) for item, data in inputs.items()}
    made = onnx.helper.make_graph(
        list(nodes),
        "condition",
        [onnx.helper.make_tensor_value_info(item, kind, None) for item, kind in kinds.items()],
        [onnx.helper.make_empty_tensor_value_info(item) for item in outputs],
        list(graph.initializer),
    )
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return ReferenceEvaluator(onnx.helper.make_model(made, opset_imports=imports))
