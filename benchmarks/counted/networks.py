"""A network's plan counted: what it moves, computes and holds, by schedules that need no measurement."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.counted.executed import executed_cycles
from benchmarks.counted.shares import longest
from benchmarks.counted.traffic import extent_of, kernel_traffic
from benchmarks.harness.progress import Bar
from boards.description import Board
from boards.target import Target
from cross.codegen.buffers import size_bytes
from cross.expression.language.terms import Int
from cross.loopnest.nodes import Block, For, LoopKind, LoopNest, Statement, nested
from cross.loopnest.threads import launches
from toolkit.features.totals import arithmetic
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph, Group, Repeat, Value
from toolkit.tuning.on_board import open_task

Nests = Mapping[str, LoopNest]
"""The program of each operator, by its key."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one run. `least`: inputs, outputs and weights once, which no program goes below that begins
    with empty caches; `moved`: by the plan's kernels, one after the other."""

    least: int
    moved: int

    @property
    def ratio(self) -> float:
        return self.moved / self.least


def programs(graph: Graph, board: Board, target: Target) -> Nests:
    """The program of each operator that needs no measurement."""
    found = {}
    for item in distinct_operators(graph):
        task = open_task(item.name, item.operator, board, target)
        found[item.operator.key] = task.programs.nest(task.programs.space.default())
    return found


def traffic(graph: Graph, nests: Nests, cache_bytes: int, threads: int) -> Traffic:
    """What a run moves with so many bytes of cache for each thread.

    Between kernels the caches keep, all together, the whole values that were used last. One that is still
    there when a kernel reads it is not fetched, and one that is there until nobody reads it any more is not
    written.
    """
    caches = _Caches(graph, threads * cache_bytes)
    for inner, group, times in _groups(graph):
        bytes_alone = kernel_traffic(nests[group.operator.key], cache_bytes, threads)
        caches.run(inner, group, times * bytes_alone)
    return Traffic(least(graph), caches.moved)


@dataclass(frozen=True, slots=True)
class Launches:
    """Of a GPU in one run: kernels that are started one after the other, and the bytes that they write to
    global memory, what one launch of an operator hands to its next one among them."""

    count: int
    written_bytes: int


def gpu_launches(graph: Graph, nests: Nests) -> Launches:
    """What a run starts and writes, with a program for each operator."""
    count = written = 0
    for _, group, times in _groups(graph):
        nest = nests[group.operator.key]
        count += times * len(launches(nest))
        workspace = sum(size_bytes(item) for item in nest.workspace)
        written += times * (workspace + group.operator.output.size_bytes)
    return Launches(count, written)


def least(graph: Graph) -> int:
    """Bytes of the inputs, the outputs and every weight that is read."""
    outside = {graph.root(name) for name in (*graph.inputs, *graph.outputs)}
    read = {id(value.data): value.nbytes for value in _operands(graph) if value.data is not None}
    return sum(graph.values[name].nbytes for name in outside) + sum(read.values())


def _operands(graph: Graph) -> Iterator[Value]:
    for inner, group, _ in _groups(graph):
        yield from (inner.values[name] for name in group.inputs)


def _groups(graph: Graph, times: int = 1) -> Iterator[tuple[Graph, Group, int]]:
    """Every group with the graph that it is in, and how often it runs at most."""
    for step in graph.steps:
        if isinstance(step, Group):
            yield graph, step, times
            continue
        count = step.control.count if isinstance(step.control, Repeat) else 1
        for body in step.control.bodies:
            yield from _groups(body, times * count)


_Name = tuple[int, str]  # of a value that owns its memory: its graph and its name


class _Caches:
    """The values that the caches hold, the last used at the end, and the bytes moved so far."""

    def __init__(self, graph: Graph, cache_bytes: int) -> None:
        self._held: OrderedDict[_Name, int] = OrderedDict()
        self._limit = cache_bytes
        self._readers = Counter(
            (id(inner), inner.root(name)) for inner, group, _ in _groups(graph) for name in {*group.inputs}
        )
        self._outside = {(id(graph), graph.root(name)) for name in (*graph.inputs, *graph.outputs)}
        self.moved = 0

    def run(self, graph: Graph, group: Group, kernel_bytes: int) -> None:
        """A kernel that moves so many bytes from empty caches."""
        self.moved += kernel_bytes
        for name in {*group.inputs}:
            if (id(graph), graph.root(name)) in self._held:
                self.moved -= graph.values[name].nbytes
        for name in (*group.inputs, group.output):
            self._use((id(graph), graph.root(name)), graph.values[graph.root(name)].nbytes)
        for name in {*group.inputs}:
            value = (id(graph), graph.root(name))
            self._readers[value] -= 1
            dies = not self._readers[value] and value not in self._outside
            if dies and value in self._held and graph.values[name].data is None:
                self.moved -= self._held.pop(value)  # it was never written to memory

    def _use(self, value: _Name, size_bytes: int) -> None:
        """Into the caches, at the expense of what was used longest ago."""
        self._held[value] = size_bytes
        self._held.move_to_end(value)
        while sum(self._held.values()) > self._limit:
            self._held.popitem(last=False)


def cycles(graph: Graph, nests: Nests, target: Target) -> float:
    """Cycles of one run on one core, by the model of its issue and with every load in the first cache."""
    used = Counter[str]()
    for group, times in graph.every_group():
        used[group.operator.key] += times
    shown = Bar("kernels", len(used))
    return sum(times * executed_cycles(nests[key], target) for key, times in shown(used.items()))


def _operations(nest: LoopNest) -> int:
    """All arithmetic, as executed."""
    counts = arithmetic(nest).values()
    return sum(item.value for item in counts if isinstance(item, Int))


def balance(graph: Graph, nests: Nests, speeds: Sequence[float], *, helping: bool = False) -> float:
    """The part of what threads on cores of these speeds could do that they do, if all arithmetic of a core
    took equally long.

    1 where every parallel loop divides evenly and nothing runs on one thread alone. helping: as the pool does
    where cores differ in speed (shares.py).
    """
    busy = spent = 0.0
    for group, times in graph.every_group():
        nest = nests[group.operator.key]
        for statement in _in_turn(nest.body):
            alone = LoopNest(nest.name, nest.arguments, nest.workspace, Block((statement,)), 0)
            work = times * _operations(alone)
            took = _longest(statement, speeds, helping=helping)
            busy, spent = busy + work, spent + math.fsum(speeds) * work * took
    return busy / spent


def _in_turn(body: Statement) -> tuple[Statement, ...]:
    """The statements of a kernel that run one after the other."""
    return body.statements if isinstance(body, Block) else (body,)


def _longest(statement: Statement, speeds: Sequence[float], *, helping: bool) -> float:
    """Time of a statement over what all of it would take on a core of speed 1."""
    loops = (item for _, item in nested(statement) if isinstance(item, For))
    outer = next((item for item in loops if item.kind is LoopKind.PARALLEL), None)
    if outer is None:
        return 1.0 / speeds[0]
    return longest(extent_of(outer), speeds, helping=helping) / extent_of(outer)
