"""The annealing's list of best candidates against sorting everything."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.synthetic_space import TilingSpace, everything
from toolkit.explore.annealing import Best

SPACE = TilingSpace((4, 4, 3), 2, 2, footprint=1e9)
POINTS = everything(SPACE)


@given(
    st.lists(st.integers(0, len(POINTS) - 1), max_size=120),
    st.sets(st.integers(0, len(POINTS) - 1), max_size=30),
    st.integers(1, 20),
    st.integers(1, 9),
)
def test_best_is_what_sorting_gives(offered: list[int], seen: set[int], keep: int, parts: int) -> None:
    scores = np.random.default_rng(0).permutation(len(POINTS)).astype(np.float32)
    best = Best(SPACE, keep, SPACE.ids(POINTS[sorted(seen)]))
    for part in np.array_split(np.array(offered, np.int64), parts):
        best.offer(POINTS[part], scores[part])
    expected = sorted(set(offered) - seen, key=lambda place: -scores[place])[:keep]
    assert np.array_equal(best.candidates().batch, POINTS[expected])
