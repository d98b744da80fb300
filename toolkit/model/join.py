"""Chains of groups as one operator each: what one group hands to the next stays in a cache.

A group whose result one other group reads, and nothing else, may be joined with that one: the operator of
both has the reductions of both, and a schedule space in which the first is computed block by block of the
second (cross/schedule/chain.py). Where the graph is cut into chains is a shortest path over the time that the
target is expected to lose or win by each chain (chain_cost.py and gpu_chain.py there). Start at `joined`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from boards.target import Target
from cross.expression.rewrites.composition import composed
from cross.schedule.choose import saved_by_chain
from toolkit.model.graph import Graph, Group, Region

LONGEST = 3  # groups of a chain: an inverted bottleneck has three


def joined(graph: Graph, target: Target) -> Graph:
    """The fused graph with chains of groups joined where the target is expected to win by it."""
    steps: dict[str, Group | Region] = {_output(step): step for step in graph.steps}
    following = _following(graph)
    begun = {name for name in steps if name not in following.values()}
    for first in [name for name in steps if name in begun]:
        path = [first]
        while path[-1] in following:
            path.append(following[path[-1]])
        for part in _cut(graph, [steps[name] for name in path], target):
            for group in part.gone:
                del steps[group.output]
            steps[part.group.output] = part.group
    return replace(graph, steps=tuple(steps[name] for name in map(_output, graph.steps) if name in steps))


def _output(step: Group | Region) -> str:
    return step.output if isinstance(step, Group) else step.outputs[0]


def _following(graph: Graph) -> dict[str, str]:
    """For every result of a group that reduces which one other such group reads once, in the shape it
    was made in, the other's result. Chains of elementwise nodes were cut for their length (chains.py).
    """
    whole = {graph.root(name) for name in graph.outputs} | {graph.root(name) for name in graph.inputs}
    readers: dict[str, list[tuple[Group | Region, str]]] = {}
    for step in graph.steps:
        for name in step.inputs:
            readers.setdefault(graph.root(name), []).append((step, name))
    found: dict[str, str] = {}
    for group in graph.groups:
        name = group.output
        if (
            not group.operator.reduces
            or name in whole
            or graph.root(name) != name
            or len(readers.get(name, ())) != 1
        ):
            continue
        ((reader, read_as),) = readers[name]
        if not isinstance(reader, Group) or not reader.operator.reduces or reader.output in found.values():
            continue
        handed = reader.operator.inputs[reader.inputs.index(read_as)]
        made = group.operator.output
        if (made.shape, made.dtype) == (handed.shape, handed.dtype) and group.operator.destination is None:
            found[name] = reader.output
    return found


class _Part(msgspec.Struct, frozen=True):
    """A chain as one group, the groups in it but the last, and the seconds that it saves."""

    group: Group
    gone: tuple[Group, ...]
    saved_s: float


def _cut(graph: Graph, path: Sequence[Group | Region], target: Target) -> list[_Part]:
    """The chains among groups that feed one another: the cut of the path that saves most time."""
    best: list[tuple[float, list[_Part]]] = [(0.0, [])]  # by the number of groups that are covered
    for end in range(1, len(path) + 1):
        choices = [best[end - 1]]
        for start in range(max(0, end - LONGEST), end - 1):
            groups = [step for step in path[start:end] if isinstance(step, Group)]
            part = _joined(graph, groups, target)
            if part.saved_s > 0.0:
                choices.append((best[start][0] + part.saved_s, [*best[start][1], part]))
        best.append(max(choices, key=lambda item: item[0]))
    return best[-1][1]


def _joined(graph: Graph, groups: Sequence[Group], target: Target) -> _Part:
    """Groups of which each feeds the next as one."""
    operator, inputs = groups[0].operator, groups[0].inputs
    for before, group in itertools.pairwise(groups):
        position = next(
            number for number, name in enumerate(group.inputs) if graph.root(name) == before.output
        )
        operator = composed(operator, group.operator, position)
        inputs = (*inputs, *(name for number, name in enumerate(group.inputs) if number != position))
    nodes = tuple(dict.fromkeys(name for group in groups for name in group.nodes))
    group = Group(groups[-1].name, operator, inputs, groups[-1].output, nodes)
    saved_s = saved_by_chain([item.operator for item in groups], operator, target)
    return _Part(group, tuple(groups[:-1]), saved_s)
