"""The pairs of the reuse benchmark may reuse each other, and are made to order."""

from __future__ import annotations

import pytest

from benchmarks.reuse.families import FAMILIES, pair
from toolkit.reuse.loops import major_loops, reusable


@pytest.mark.parametrize("family", FAMILIES)
def test_pairs_may_reuse_each_other(family: str) -> None:
    for seed in range(10):
        operator, other = pair(family, seed)
        loops = [major_loops(item, item.name) for item in (operator, other)]
        assert reusable(*loops)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_pair(family: str) -> None:
    assert [item.key for item in pair(family, 3)] == [item.key for item in pair(family, 3)]
    keys = {tuple(item.key for item in pair(family, seed)) for seed in range(10)}
    assert len(keys) > 1
