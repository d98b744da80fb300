"""The cheapest way to reach every node from a root: minimum-cost arborescence (Chu and Liu; Edmonds).

Written over a dense cost matrix, because the graphs of reuse have hundreds of nodes and up to a third of all
arcs: every step is one numpy operation over a row or a column.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.errors import ToolkitError

Costs = NDArray[np.float64]


class UnreachableNode(ToolkitError):
    """No arborescence: some node cannot be reached from the root."""


class Arborescence(msgspec.Struct, frozen=True):
    """`parents` [N]: the node before each one, -1 for the root and what is left out; `cost`: of all arcs."""

    parents: NDArray[np.int64]
    cost: float

    @property
    def arcs(self) -> list[tuple[int, int]]:
        """(from, to), by the node an arc leads to."""
        return [(int(parent), node) for node, parent in enumerate(self.parents) if parent >= 0]


def minimum_arborescence(costs: Costs, root: int = 0) -> Arborescence:
    """Arcs of the least total cost such that every node has one path from `root`.

    costs: float64 [N, N], from row to column, inf where there is no arc; the diagonal and the root's
    column do not matter. Equal costs are settled by the lower node. Raises UnreachableNode.
    """
    count = len(costs)
    graph = _Contracted(costs, root)
    for start in range(count):
        graph.grow(start)
    parents = graph.expanded()
    reached = np.flatnonzero(parents >= 0)
    return Arborescence(parents, float(costs[parents[reached], reached].sum()))


class _Contracted:
    """The graph while cycles are contracted into new nodes, numbered from N on.

    `best` of a node is the cheapest arc that enters it, as (from, to) of the original graph. The arcs of a
    contracted cycle keep what they cost beyond the arc of the cycle that they would replace.
    """

    def __init__(self, costs: Costs, root: int) -> None:
        count = len(costs)
        size = 2 * count
        self.root = root
        self.count = count
        self.cost = np.full((size, size), np.inf)
        self.cost[:count, :count] = costs
        np.fill_diagonal(self.cost, np.inf)
        self.cost[:, root] = np.inf
        # The original arc behind the cheapest one between two nodes of the contracted graph.
        self.source = np.zeros((size, size), np.int32)
        self.target = np.zeros((size, size), np.int32)
        self.source[:count, :count] = np.arange(count)[:, None]
        self.target[:count, :count] = np.arange(count)[None, :]
        self.alive = np.zeros(size, np.bool_)
        self.alive[:count] = True
        self.outer = np.full(size, -1)
        self.members: dict[int, list[int]] = {}
        self.entered: dict[int, tuple[int, int]] = {}
        self.settled = np.zeros(size, np.bool_)
        self.settled[root] = True
        self.next = count

    def top(self, node: int) -> int:
        """The contracted node that holds this one now."""
        while self.outer[node] >= 0:
            node = int(self.outer[node])
        return node

    def grow(self, start: int) -> None:
        """Follow cheapest arcs backwards from a node until something settled is met."""
        path: list[int] = []
        place: dict[int, int] = {}
        node = self.top(start)
        while not self.settled[node]:
            place[node] = len(path)
            path.append(node)
            column = np.where(self.alive, self.cost[:, node], np.inf)
            previous = int(column.argmin())
            if not np.isfinite(column[previous]):
                raise UnreachableNode(f"node {self._original(node)} cannot be reached from node {self.root}")
            self.entered[node] = (int(self.source[previous, node]), int(self.target[previous, node]))
            if previous in place:
                cycle = path[place[previous] :]
                del path[place[previous] :]
                for member in cycle:
                    del place[member]
                previous = self._contract(cycle)
            node = previous
        self.settled[path] = True

    def _contract(self, cycle: list[int]) -> int:
        new = self.next
        self.next += 1
        self.members[new] = cycle
        self.outer[cycle] = new
        self.alive[cycle] = False
        inside = np.array(cycle)
        chosen = np.array([self.cost[self._holder(self.entered[node][0], cycle), node] for node in cycle])
        entering = self.cost[:, inside] - chosen[None, :]
        which = entering.argmin(axis=1)
        rows = np.arange(len(entering))
        self.cost[:, new] = np.where(self.alive, entering[rows, which], np.inf)
        self.source[:, new] = self.source[rows, inside[which]]
        self.target[:, new] = self.target[rows, inside[which]]
        leaving = self.cost[inside, :]
        which = leaving.argmin(axis=0)
        self.cost[new, :] = np.where(self.alive, leaving[which, rows], np.inf)
        self.source[new, :] = self.source[inside[which], rows]
        self.target[new, :] = self.target[inside[which], rows]
        self.alive[new] = True
        return new

    def _holder(self, original: int, nodes: list[int]) -> int:
        """Which of some nodes, side by side in one cycle, holds an original node."""
        node = original
        while node not in nodes:
            node = int(self.outer[node])
        return node

    def _original(self, node: int) -> int:
        while node >= self.count:
            node = self.members[node][0]
        return node

    def expanded(self) -> NDArray[np.int64]:
        """Parents in the original graph: each cycle is opened where the arc into it ends."""
        parents = np.full(self.count, -1, np.int64)
        pending = [node for node in range(self.next) if self.outer[node] < 0 and node != self.root]
        while pending:
            node = pending.pop()
            source, target = self.entered[node]
            if node < self.count:
                parents[node] = source
                continue
            self.entered[self._holder(target, self.members[node])] = (source, target)
            pending += self.members[node]
        return parents
