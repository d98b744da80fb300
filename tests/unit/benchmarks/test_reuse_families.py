"""The pairs of the reuse benchmark may reuse each other, and are made to order."""

from __future__ import annotations

import pytest

from benchmarks.reuse.families import FAMILIES, draw
from toolkit.explore.neighbourhood.loops import major_loops
from toolkit.reuse.plan.bridges import reusable


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_of_a_draw_may_reuse_each_other(family: str) -> None:
    for seed in range(10):
        large, small = (major_loops(item, item.name) for item in draw(family, seed))
        assert reusable(large, small) and reusable(small, large)
        assert large.size > small.size


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_draws_the_same_operators(family: str) -> None:
    assert [item.key for item in draw(family, 3)] == [item.key for item in draw(family, 3)]
    keys = {tuple(item.key for item in draw(family, seed)) for seed in range(10)}
    assert len(keys) > 1
