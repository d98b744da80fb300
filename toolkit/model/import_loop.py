"""Loop: one body that is repeated or, where that cannot be, its runs one by one.

A loop of few runs whose body needs the number of the run as a constant, or whose sizes change from run to
run, becomes its runs. Any other is a `Repeat`; how often that runs may depend on data.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from toolkit.model.function_bodies import OnnxNode, rename
from toolkit.model.graph import Count, Repeat, Value, computed_in
from toolkit.model.loop_count import counted_runs
from toolkit.model.refusals import NodeRefused
from toolkit.model.walk import (
    Inner,
    Walk,
    as_slice,
    carried_values,
    check_same,
    inlined,
    output,
    visit,
    walked,
)

MOST_RUNS: Final = (1 << 31) - 1
MOST_UNROLLED: Final = 1 << 12  # nodes that the runs of a loop become


def loop(walk: Walk, node: OnnxNode) -> None:
    """Import a Loop."""
    graph = next(item.g for item in node.proto.attribute if item.name == "body")
    if unchanged := _unchanged(graph):
        _without(walk, node, graph, unchanged)
        return
    count, condition, *begin = (*node.proto.input, "", "")[: max(len(node.proto.input), 2)]
    runs, counted = _most_runs(walk, node, count, condition), None
    known = _is_known(walk, count) and _is_known(walk, condition)
    if known and (counted := counted_runs(walk, node, graph, begin, runs)) is not None:
        runs = counted
    before = len(walk.refused)
    try:
        _repeated(walk, node, graph, (count, condition, *begin), runs, ends=counted is None)
    except NodeRefused:
        if not known or runs * len(graph.node) > MOST_UNROLLED:
            raise
        found = walk.refused[before:]
        del walk.refused[before:]
        if not _unrolled(walk, node, graph, begin, runs):
            walk.refused[before:] = found
            raise


def _unchanged(graph: Any) -> list[int]:
    """The places of the carried values that every run passes on as they are, as TensorFlow's weights."""
    copies = {made.output[0]: made.input[0] for made in graph.node if made.op_type == "Identity"}
    found = []
    for place, (own, new) in enumerate(zip(list(graph.input)[2:], list(graph.output)[1:], strict=False)):
        name = new.name
        while name in copies:
            name = copies[name]
        if name == own.name:
            found.append(place)
    return found


def _without(walk: Walk, node: OnnxNode, graph: Any, places: Sequence[int]) -> None:
    """Walk a Loop that reads some carried values from around it instead, constants as such."""
    import onnx

    proto, body = onnx.NodeProto(), onnx.GraphProto()
    proto.CopyFrom(node.proto)
    body.CopyFrom(graph)
    names = {graph.input[2 + place].name: node.proto.input[2 + place] for place in places}
    for place in sorted(places, reverse=True):
        del body.input[2 + place], body.output[1 + place], proto.input[2 + place]
        if place < len(proto.output):
            own = proto.output.pop(place)
            if own:
                visit(walk, node, onnx.helper.make_node("Identity", [node.proto.input[2 + place]], [own]))
    for inner in body.node:
        rename(inner, names, {})
    for item in body.output:
        item.name = names.get(item.name, item.name)
    next(item for item in proto.attribute if item.name == "body").g.CopyFrom(body)
    visit(walk, node, proto)


def _is_known(walk: Walk, name: str) -> bool:
    """Whether an operand is left out or a constant."""
    return not name or walk.builder.values[name].data is not None


def _most_runs(walk: Walk, node: OnnxNode, count_name: str, condition_name: str) -> int:
    """How often a loop runs at most.

    Raises:
        NodeRefused: it never runs.
    """
    most = walk.interval(count_name) if count_name else None
    condition = walk.builder.values[condition_name].data if condition_name else None
    runs = MOST_RUNS if most is None else min(int(most.high.item()), MOST_RUNS)
    if runs < 1 or (condition is not None and not condition.all()):
        raise walk.refuse(node, "it never runs", "export the model without it")
    return runs


def _repeated(
    walk: Walk, node: OnnxNode, graph: Any, inputs: Sequence[str], runs: int, *, ends: bool
) -> None:
    """A Loop as a `Repeat` of at most `runs` runs, or of just as many where none `ends` it before.

    `inputs` are all of the node's, "" for one left out.

    The condition is true in every run that begins, so that the body has it as a constant. Where data say when
    the loop ends, a stack has room for all runs, and the number of those there were counts it.
    """
    count_name, condition_name, *begin = inputs
    number, state, *formal = [item.name for item in graph.input]
    carried = carried_values(walk, begin, formal)
    inner = walked(walk, node, graph, [Value(number, (), "int64"), *carried], {state: np.array(True)})
    for own, new in zip(carried, inner.results[1:], strict=False):
        check_same(walk, node, own, inner.value(new))
    stacked = inner.results[1 + len(begin) :]
    if stacked and runs == MOST_RUNS:
        what = "it stacks as many slices as data say"
        raise walk.refuse(node, what, "give it a constant trip count, the most runs there may be")
    counting = _counter(walk, node, inner, number)
    states = [counting, *zip(formal, inner.results[1:], begin, strict=False)]
    computed = [name for name in (count_name, condition_name) if not _is_known(walk, name)]
    conditional = ends and (bool(computed) or not _is_always_true(inner, 0))
    if conditional:
        states.insert(0, _condition(walk, node, inner, counting, inputs))
    captured = tuple(dict.fromkeys((*inner.captured, *(name for name in computed if name == count_name))))
    results = (*(new for _, new, _ in states), *stacked)
    body = replace(inner, results=results).finished([*(own for own, _, _ in states), *captured])
    repeat = Repeat(body, runs, len(states), 0, results, (False,) * len(stacked), conditional)
    names = [""] * (len(states) - len(begin)) + list(node.proto.output)
    if conditional:
        names[len(states) :] = [""] * len(stacked)
    outputs = [
        output(walk, node, name, inner.value(new), (runs,) if place >= len(states) else ())
        for place, (name, new) in enumerate(zip_longest(names, results, fillvalue=""))
    ]
    walk.builder.control(repeat, [*(first for _, _, first in states), *captured], outputs, node.name)
    if conditional:
        stacks = [item.name for item in outputs[len(states) :]]
        _count_stacks(walk, node, outputs[1].name, stacks, node.proto.output[len(begin) :])


def _counter(walk: Walk, node: OnnxNode, inner: Inner, number: str) -> tuple[str, str, str]:
    """The number of the run, carried: the body's input, what follows it, and what it begins with."""
    build = inner.walk.builder
    one = build.constant(f"{number}/one", np.array(1, np.int64))
    following = build.emit("Add", [number, one], Value(build.fresh(f"{number}/next"), (), "int64"))
    return number, following, walk.builder.constant(f"{node.name}/first", np.array(0, np.int64))


def _condition(
    walk: Walk, node: OnnxNode, inner: Inner, counting: tuple[str, str, str], inputs: Sequence[str]
) -> tuple[str, str, str]:
    """Whether a run begins, carried: as `_counter`; `counting` is what that gave, `inputs` the node's."""
    count_name, condition_name, *_ = inputs
    first = condition_name or walk.builder.constant(f"{node.name}/condition", np.array(True))
    again = inner.results[0]
    own = inner.walk.builder.add(
        replace(inner.value(again), name=inner.walk.builder.fresh(f"{again}/carried"))
    )
    if not count_name or walk.builder.values[count_name].constant:
        return own, again, first
    found = []
    for build, number, holds in (
        (inner.walk.builder, counting[1], again),
        (walk.builder, counting[2], first),
    ):
        limit = build.emit("Reshape", [count_name], Value(build.fresh(f"{node.name}/limit"), (), "int64"))
        below = build.emit("Less", [number, limit], Value(build.fresh(f"{node.name}/below"), (), "bool"))
        value = replace(build.values[holds], name=build.fresh(f"{node.name}/runs"), data=None)
        found.append(build.emit("And", [holds, below], value))
    return own, found[0], found[1]


def _is_always_true(inner: Inner, position: int) -> bool:
    """Whether a result is a copy of a constant that holds."""
    copy = next(made for made in inner.walk.builder.nodes if made.output == inner.results[position])
    data = inner.value(copy.inputs[0]).data
    return data is not None and bool(data.all())


def _count_stacks(walk: Walk, node: OnnxNode, by: str, stacks: Sequence[str], names: Sequence[str]) -> None:
    """The stacks of a loop under its outputs' names; slices of runs that there were not are zeros."""
    build = walk.builder
    for stack, name in zip(stacks, names, strict=False):
        if not name:
            continue
        like = build.values[stack]
        rows = (like.shape[0], *(1,) * (len(like.shape) - 1))
        places = build.constant(f"{name}/runs", np.arange(like.shape[0]).reshape(rows))
        zero = build.constant(f"{name}/zero", np.zeros((), computed_in(like.dtype)))
        made = build.emit("Less", [places, by], Value(build.fresh(f"{name}/made"), rows, "bool"))
        value = replace(like, name=name, source=name)
        walk.made(build.values[build.emit("Where", [made, stack, zero], value, name=node.name)])
        build.counts[name] = Count(by, 0)


def _unrolled(walk: Walk, node: OnnxNode, graph: Any, begin: Sequence[str], runs: int) -> bool:
    """A Loop as its runs, each in the place of the walk, with its number as a constant.

    Returns False, and nodes that nobody reads, where a run is refused or data say how many there are.
    """
    import onnx

    count, (number, state, *formal) = len(walk.refused), [item.name for item in graph.input]
    carried, stacks = list(begin), [list[str]() for _ in graph.output[1 + len(begin) :]]
    for run in range(runs):
        scope = f"{node.scope}/{run}"
        given = {item: f"{scope}/{item}" for item in (number, state)}
        walk.know(given[number], np.array(run))
        walk.know(given[state], np.array(True))
        again, *results = inlined(walk, node, graph, given | dict(zip(formal, carried, strict=True)), scope)
        if len(walk.refused) > count or (go := walk.builder.values[again].data) is None:
            del walk.refused[count:]
            return False
        carried = results[: len(begin)]
        for stack, item in zip(stacks, results[len(begin) :], strict=True):
            stack.append(as_slice(walk, node, item))
        if not go.all():
            break
    ends: list[tuple[str, list[str], dict[str, int]]] = [("Identity", [item], {}) for item in carried]
    ends += [("Concat", stack, {"axis": 0}) for stack in stacks]
    for (op, items, attributes), name in zip(ends, node.proto.output, strict=False):
        if name:
            visit(walk, node, onnx.helper.make_node(op, items, [name], **attributes))
    return True
