"""Against every subset of optional nodes on small graphs; the greedy alone must reach all terminals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.reuse.graph.arborescence import UnreachableNode, minimum_arborescence
from toolkit.reuse.graph.steiner import LocalSearch, flow_greedy, locally_best, steiner_tree


def exact(costs: np.ndarray, terminals: list[int]) -> float:
    """The least cost over all sets of optional nodes."""
    optional = [node for node in range(1, len(costs)) if node not in terminals]
    best = np.inf
    for size in range(len(optional) + 1):
        for some in itertools.combinations(optional, size):
            nodes = np.array([0, *sorted([*terminals, *some])])
            try:
                best = min(best, minimum_arborescence(costs[np.ix_(nodes, nodes)]).cost)
            except UnreachableNode:
                continue
    return best


def reuse_like(rng: np.random.Generator, count: int, terminals: int) -> np.ndarray:
    """Tuning a node from the root is dear, reuse is cheap; half of the reuses are impossible."""
    costs = np.full((count + 1, count + 1), np.inf)
    costs[0, 1 : terminals + 1] = 1000.0
    costs[0, terminals + 1 :] = 1000.0
    between = rng.integers(20, 300, (count, count)).astype(float)
    between[rng.random((count, count)) < 0.5] = np.inf
    costs[1:, 1:] = between
    return costs


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(0, 5))
def test_small_graphs_are_solved_exactly(seed: int, terminals: int, optional: int) -> None:
    rng = np.random.default_rng(seed)
    costs = reuse_like(rng, terminals + optional, terminals)
    wanted = list(range(1, terminals + 1))
    found = steiner_tree(costs, wanted)
    assert found.cost == pytest.approx(exact(costs, wanted))
    for terminal in wanted:
        node, steps = terminal, 0
        while node != 0:
            node, steps = int(found.parents[node]), steps + 1
            assert 0 <= node and steps <= len(costs)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(0, 7))
def test_the_local_search_alone_comes_close(seed: int, terminals: int, optional: int) -> None:
    costs = reuse_like(np.random.default_rng(seed), terminals + optional, terminals)
    wanted = list(range(1, terminals + 1))
    found = locally_best(LocalSearch(costs, wanted, 0), costs, wanted, 0)
    best = exact(costs, wanted)
    assert best - 1e-9 <= found.cost <= 1.1 * best


def test_many_optional_nodes_cost_no_more_than_none() -> None:
    costs = reuse_like(np.random.default_rng(5), 120, 20)
    wanted = list(range(1, 21))
    found = steiner_tree(costs, wanted)
    alone = minimum_arborescence(costs[:21, :21]).cost
    flowed = sum(costs[source, target] for source, target in flow_greedy(costs, wanted))
    assert found.cost <= min(alone, flowed)
    assert set(wanted) <= {target for _, target in found.arcs}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(0, 12))
def test_the_flow_reaches_every_terminal(seed: int, terminals: int, optional: int) -> None:
    costs = reuse_like(np.random.default_rng(seed), terminals + optional, terminals)
    arcs = flow_greedy(costs, list(range(1, terminals + 1)))
    reached, grown = {0}, True
    while grown:
        new = {target for source, target in arcs if source in reached} - reached
        reached |= new
        grown = bool(new)
    assert set(range(1, terminals + 1)) <= reached


def test_a_bridge_that_serves_two_is_taken_and_a_dear_one_is_left() -> None:
    costs = np.full((5, 5), np.inf)
    costs[0, 1:] = 100.0
    costs[3, 1] = costs[3, 2] = 10.0
    costs[4, 1] = costs[4, 2] = 60.0
    found = steiner_tree(costs, [1, 2])
    assert sorted(found.arcs) == [(0, 3), (3, 1), (3, 2)]
    assert found.cost == 120.0


def test_terminals_out_of_reach_are_an_error() -> None:
    costs = np.full((3, 3), np.inf)
    costs[0, 1] = 1.0
    with pytest.raises(UnreachableNode, match="each of the 2 terminals"):
        steiner_tree(costs, [1, 2])
