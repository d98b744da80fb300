"""Packed weights hold what the loops of their layout index."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cross.schedule.packing import PackedLoop, Packing, mapped


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    """Tiled dimensions with overlapping last tiles, their loops in any order; some dimensions have none."""
    shape, loops = [], []
    for source in range(draw(st.integers(1, 3))):
        inner, outer = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        extent = draw(st.integers(inner, inner * outer))
        shape.append(extent)
        if draw(st.booleans()):
            tiles = -(-extent // inner)
            loops.append(PackedLoop(source, tiles, inner, last_start=extent - inner))
            loops.append(PackedLoop(source, inner, 1))
        elif draw(st.booleans()):
            loops.append(PackedLoop(source, extent, 1))
    return Packing(tuple(shape), tuple(draw(st.permutations(loops))))


def element(packing: Packing, array: np.ndarray, place: tuple[int, ...]) -> float:
    """The operand's element at one iteration of the loops."""
    index = [0] * array.ndim
    for loop, iteration in zip(packing.loops, place, strict=True):
        start = iteration * loop.step
        index[loop.source] += min(start, loop.last_start) if loop.last_start >= 0 else start
    return float(array[tuple(index)])


@given(packings().filter(lambda packing: bool(packing.loops)))
def test_every_element_is_the_one_that_its_loops_index(packing: Packing) -> None:
    array = np.arange(np.prod(packing.shape), dtype=np.float32).reshape(packing.shape)
    packed = packing.apply(array)
    assert packed.shape == packing.packed_shape
    assert packed.flags.c_contiguous
    for place in itertools.product(*(range(loop.extent) for loop in packing.loops)):
        assert packed[place] == element(packing, array, place)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_maps_are_applied_along_their_dimensions(old: int, new: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = rng.standard_normal((2, new, old))
    array = rng.standard_normal((old, 5, old))
    found = mapped(array, ((0, _rows(first)), (2, _rows(second))))
    operands = first, array, second
    expected, magnitude = (
        np.einsum("ai,ijk,bk->ajb", *items) for items in (operands, [np.abs(item) for item in operands])
    )
    assert (np.abs(found - expected) <= 1e-14 * magnitude).all()  # of at most 9 products each


def test_an_operand_of_another_shape_is_refused() -> None:
    packing = Packing((4,), (PackedLoop(0, 4, 1),))
    with pytest.raises(ValueError, match=r"shape \(4,\), found \(5,\)"):
        packing.apply(np.zeros(5, np.float32))


def _rows(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())
