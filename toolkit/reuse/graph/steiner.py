"""The cheapest way to reach some nodes from a root, through others where that pays: directed Steiner tree.

`steiner_tree` is the door. The problem is NP-hard; the flow greedy of Watel and Weisser (G_FLAC, "A practical
greedy approximation for the directed Steiner tree problem", 2014) gives a start, and a local search over the
optional nodes, each time with the exact arborescence of those chosen, improves it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toolkit.reuse.graph.arborescence import Arborescence, Costs, UnreachableNode, minimum_arborescence

EXHAUSTIVE: Final = 64
"""Up to this many optional nodes the local search tries each one in every pass; of more, those with hope."""
PAIRS: Final = 24
"""Up to this many, also two at once."""
SUBSETS: Final = 8
"""Up to this many, every set of them is tried: the result is exact."""


def steiner_tree(costs: Costs, terminals: Sequence[int], root: int = 0) -> Arborescence:
    """A tree from `root` to every terminal; other nodes are in it only where they save cost.

    costs: float64 [N, N], from row to column, at least 0, inf where there is no arc. Exact for up to SUBSETS
    optional nodes; beyond, not worse than G_FLAC and than the arborescence without optional nodes, and within
    a few per cent of the optimum on random graphs. Raises UnreachableNode.
    """
    search = LocalSearch(costs, terminals, root)
    if len(search.optional) <= SUBSETS:
        return search.exact()
    return locally_best(search, costs, terminals, root)


def locally_best(search: LocalSearch, costs: Costs, terminals: Sequence[int], root: int) -> Arborescence:
    """The best of what the local search makes of several starts. Raises UnreachableNode."""
    starts = [frozenset[int]()]
    flowed = flow_greedy(costs, terminals, root)
    starts.append(frozenset(node for arc in flowed for node in arc) - {root, *terminals})
    if len(search.optional) <= EXHAUSTIVE:
        starts.append(frozenset(search.optional))
    found = [search.improved(start) for start in dict.fromkeys(starts)]
    reached = [tree for tree in found if tree is not None]
    return search.best_of(reached)


def flow_greedy(costs: Costs, terminals: Sequence[int], root: int = 0) -> list[tuple[int, int]]:
    """G_FLAC: arcs of a union of trees that together reach every terminal that can be reached.

    Each round the terminals still missing let flow pour into all arcs towards them; the first tree that fills
    up to the root has few costs for each terminal, joins, and is free from then on.
    """
    costs = costs.copy()
    missing = [node for node in terminals if node != root]
    arcs: dict[tuple[int, int], None] = {}
    while missing:
        tree = _Flow(costs, missing, root).tree()
        covered = {target for _, target in tree}
        if not covered.intersection(missing):
            break
        for source, target in tree:
            arcs[source, target] = None
            costs[source, target] = 0.0
        missing = [node for node in missing if node not in covered]
    return list(arcs)


class _Flow:
    """One round of FLAC. All arcs into a node fill alike, at the rate of its terminals: it has one volume."""

    def __init__(self, costs: Costs, terminals: Sequence[int], root: int) -> None:
        count = len(costs)
        self.root = root
        entering = costs.copy()
        np.fill_diagonal(entering, np.inf)
        entering[:, root] = np.inf
        self.order = np.argsort(entering, axis=0, kind="stable")
        self.sorted = np.take_along_axis(entering, self.order, axis=0)
        self.next = np.zeros(count, np.int64)
        self.volume = np.zeros(count)
        self.below = [0] * count  # terminals that a node's full arcs lead to, as bits
        for bit, node in enumerate(terminals):
            self.below[node] |= 1 << bit
        self.rate = np.array([bits.bit_count() for bits in self.below], np.float64)
        self.full_into: list[list[int]] = [[] for _ in range(count)]
        self.full_from: list[list[int]] = [[] for _ in range(count)]
        self.columns = np.arange(count)

    def tree(self) -> list[tuple[int, int]]:
        """Arcs of the first tree that the flow fills up to the root; empty when it cannot get there."""
        rows = len(self.sorted)
        while True:
            threshold = self.sorted[np.minimum(self.next, rows - 1), self.columns]
            with np.errstate(divide="ignore", invalid="ignore"):
                waiting = (threshold - self.volume) / self.rate
            waiting[(self.rate == 0) | (self.next >= rows) | ~np.isfinite(threshold)] = np.inf
            node = int(waiting.argmin())
            if not np.isfinite(waiting[node]):
                return []
            self.volume += self.rate * max(0.0, float(waiting[node]))
            source = int(self.order[self.next[node], node])
            self.next[node] += 1
            if self._fill(source, node) and source == self.root:
                return self._below_root()

    def _fill(self, source: int, target: int) -> bool:
        """Mark an arc as full, unless some node would then have two ways to one terminal."""
        above = self._above(source)
        flow = self.below[target]
        if any(self.below[node] & flow for node in above):
            return False
        self.full_into[target].append(source)
        self.full_from[source].append(target)
        for node in above:
            self.below[node] |= flow
            self.rate[node] = self.below[node].bit_count()
        return True

    def _above(self, node: int) -> list[int]:
        found = {node: None}
        pending = [node]
        while pending:
            for source in self.full_into[pending.pop()]:
                if source not in found:
                    found[source] = None
                    pending.append(source)
        return list(found)

    def _below_root(self) -> list[tuple[int, int]]:
        arcs = []
        pending = [self.root]
        while pending:
            node = pending.pop()
            for target in self.full_from[node]:
                arcs.append((node, target))
                pending.append(target)
        return arcs


class LocalSearch:
    """Sets of optional nodes, improved by taking one in, leaving one out, or exchanging two."""

    def __init__(self, costs: Costs, terminals: Sequence[int], root: int) -> None:
        self.costs = costs
        self.root = root
        self.needed = np.array(sorted({root, *terminals}), np.int64)
        self.optional = [node for node in range(len(costs)) if node not in set(self.needed.tolist())]
        self._known: dict[frozenset[int], Arborescence | None] = {}

    def exact(self) -> Arborescence:
        """The best tree of all sets of optional nodes. Raises UnreachableNode."""
        sizes = range(len(self.optional) + 1)
        subsets = itertools.chain.from_iterable(itertools.combinations(self.optional, size) for size in sizes)
        found = [self._tree(frozenset(subset)) for subset in subsets]
        return self.best_of([tree for tree in found if tree is not None])

    def best_of(self, trees: Sequence[Arborescence]) -> Arborescence:
        """The cheapest, the first of equal ones. Raises UnreachableNode when there is none."""
        if not trees:
            terminals = len(self.needed) - 1
            raise UnreachableNode(f"no way from node {self.root} to each of the {terminals} terminals")
        return min(trees, key=lambda tree: tree.cost)

    def improved(self, start: frozenset[int]) -> Arborescence | None:
        """The best tree that single changes lead to from a set; None when the terminals stay out of reach."""
        best = self._tree(start)
        if best is None:
            best = self._tree(frozenset(self.optional))
        while best is not None:
            better = next((tree for tree in self._neighbours(best) if tree.cost < best.cost - 1e-9), None)
            if better is None:
                return best
            best = better
        return None

    def _neighbours(self, tree: Arborescence) -> Iterator[Arborescence]:
        inside = self._inside(tree)
        outside = self._hopeful(tree, inside)
        for node in outside:
            yield from self._tried(inside | {node})
        for node in sorted(inside):
            yield from self._tried(inside - {node})
        for node in sorted(inside):
            for other in outside if len(self.optional) <= EXHAUSTIVE else ():
                yield from self._tried(inside - {node} | {other})
        if len(self.optional) <= PAIRS:
            for pair in itertools.combinations(outside, 2):
                yield from self._tried(inside | set(pair))

    def _tried(self, inside: frozenset[int]) -> Iterator[Arborescence]:
        tree = self._tree(inside)
        if tree is not None:
            yield tree

    def _hopeful(self, tree: Arborescence, inside: frozenset[int]) -> list[int]:
        """Optional nodes outside; of many, those whose arcs alone save more than reaching them costs."""
        outside = np.array([node for node in self.optional if node not in inside], np.int64)
        if len(self.optional) <= EXHAUSTIVE or not len(outside):
            return [int(node) for node in outside]
        reached = np.flatnonzero(tree.parents >= 0)
        present = self.costs[tree.parents[reached], reached]
        saved = np.maximum(0.0, present[None, :] - self.costs[np.ix_(outside, reached)]).sum(axis=1)
        spent = self.costs[np.ix_(np.append(reached, self.root), outside)].min(axis=0)
        gain = saved - spent
        order = np.argsort(-gain, kind="stable")
        return [int(outside[position]) for position in order if gain[position] > 0]

    def _inside(self, tree: Arborescence) -> frozenset[int]:
        reached = {node for _, node in tree.arcs}
        return frozenset(node for node in self.optional if node in reached)

    def _tree(self, inside: frozenset[int]) -> Arborescence | None:
        if inside not in self._known:
            self._known[inside] = self._solved(inside)
        return self._known[inside]

    def _solved(self, inside: frozenset[int]) -> Arborescence | None:
        """The minimum arborescence of the needed and these nodes, without useless leaves."""
        nodes = np.sort(np.concatenate([self.needed, np.array(sorted(inside), np.int64)]))
        place = int(np.searchsorted(nodes, self.root))
        try:
            small = minimum_arborescence(self.costs[np.ix_(nodes, nodes)], place)
        except UnreachableNode:
            return None
        parents = np.full(len(self.costs), -1, np.int64)
        for source, target in small.arcs:
            parents[nodes[target]] = nodes[source]
        return pruned(self.costs, parents, frozenset(self.needed.tolist()))


def pruned(costs: Costs, parents: NDArray[np.int64], needed: frozenset[int]) -> Arborescence:
    """The tree without leaves that are not needed, again and again."""
    parents = parents.copy()
    while True:
        inner = set(parents[parents >= 0].tolist())
        leaves = [
            node for node in np.flatnonzero(parents >= 0).tolist() if node not in inner and node not in needed
        ]
        if not leaves:
            break
        parents[leaves] = -1
    reached = np.flatnonzero(parents >= 0)
    return Arborescence(parents, float(costs[parents[reached], reached].sum()))
