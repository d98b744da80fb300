"""Against the cheapest of all trees of small graphs, and what must be refused."""

from __future__ import annotations

import math

import networkx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolkit.reuse.graph.arborescence import UnreachableNode, minimum_arborescence


def graph_of(costs: np.ndarray) -> networkx.DiGraph:
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(len(costs)))
    for source, target in zip(*np.nonzero(np.isfinite(costs)), strict=True):
        if target not in (0, source):
            graph.add_edge(int(source), int(target), weight=float(costs[source, target]))
    return graph


def cheapest(costs: np.ndarray) -> float:
    """The least cost of all trees from node 0, by the least cost of every set of nodes: they are added in any
    order, each below one that is there already."""
    rows, count = costs.tolist(), len(costs)
    least = [math.inf] * (1 << count)  # by the nodes of a set, a bit for each
    least[1] = 0.0
    for known, cost in enumerate(least):
        there = [node for node in range(count) if known >> node & 1]
        for node in set(range(count)).difference(there) if math.isfinite(cost) else ():
            added = cost + min(rows[source][node] for source in there)
            least[known | 1 << node] = min(least[known | 1 << node], added)
    return least[-1]


@pytest.mark.slow
@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 9),
    density=st.sampled_from([0.3, 0.6, 1.0]),
    values=st.sampled_from([4, 50]),
)
@example(seed=7685, count=9, density=0.3, values=4)  # networkx has no tree of it
def test_no_tree_costs_less(seed: int, count: int, density: float, values: int) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.integers(1, values, (count, count)).astype(float)
    costs[rng.random((count, count)) > density] = np.inf
    graph = graph_of(costs)
    if len(networkx.descendants(graph, 0)) < count - 1:
        with pytest.raises(UnreachableNode, match="cannot be reached from node 0"):
            minimum_arborescence(costs)
        return
    found = minimum_arborescence(costs)
    assert found.cost == pytest.approx(cheapest(costs))
    tree = networkx.DiGraph(found.arcs)
    assert networkx.is_arborescence(tree)
    assert len(tree) == count
    assert sum(costs[source, target] for source, target in found.arcs) == pytest.approx(found.cost)


def test_one_node_is_a_tree_of_no_arcs() -> None:
    found = minimum_arborescence(np.zeros((1, 1)))
    assert found.arcs == []
    assert found.cost == 0.0


def test_nested_cycles_are_opened_again() -> None:
    # 1 and 2 are cheap for each other, 3 is cheap for both and they for it: a cycle within a cycle
    costs = np.full((4, 4), np.inf)
    costs[1, 2] = costs[2, 1] = 1.0
    costs[2, 3] = costs[3, 1] = 2.0
    costs[0, 1:] = [10.0, 9.0, 20.0]
    found = minimum_arborescence(costs)
    assert found.arcs == [(2, 1), (0, 2), (2, 3)]
    assert found.cost == 12.0
