"""The numpy comparison of GPU outputs agrees with the native one of CPU outputs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from cross.link import DEFAULT_CACHE_DIR, link, native_objects
from device_runtime.measure.check import Difference, compare
from device_runtime.measure.numpy_check import BLOCK, difference
from device_runtime.sandbox.guarded_memory import Region


def region(array: NDArray[np.generic]) -> Region:
    made = Region(array.nbytes)
    made.memory[: array.nbytes] = array.tobytes()
    return made


def compared(got: NDArray[np.generic], want: NDArray[np.generic]) -> Difference:
    return difference(str(want.dtype), region(got), region(want), want.size)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = load("host").target()
    path: Path = tmp_path_factory.mktemp("native") / "native.so"
    path.write_bytes(link([], target, extra_objects=native_objects(target, DEFAULT_CACHE_DIR)))
    return ctypes.CDLL(str(path))


SPECIALS = [
    ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]),
    ([1.0, 2.5, -7.0], [1.0, 2.0, -3.0]),
    ([1.0, np.nan, np.inf], [1.0, 2.0, 3.0]),
    ([np.nan, np.inf, 9.0], [np.nan, np.inf, 9.0]),
    ([1.0, -np.inf, 9.0], [np.nan, np.inf, 9.0]),
    ([0.0, 0.0, 0.0], [np.nan, np.nan, np.nan]),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("got", "want"), SPECIALS)
def test_it_finds_what_the_native_code_finds(
    library: ctypes.CDLL, dtype: type[np.floating], got: list[float], want: list[float]
) -> None:
    ours, theirs = np.array(got, dtype), np.array(want, dtype)
    name = str(ours.dtype)
    left, right = region(ours), region(theirs)
    native = compare(library, name, left.address, right.address, 3)
    assert difference(name, left, right, 3) == native


def test_the_worst_is_found_across_blocks() -> None:
    want = np.ones(BLOCK + 10, np.float32)
    got = want.copy()
    got[3], got[BLOCK + 5] = 1.5, 3.0
    found = compared(got, want)
    assert (found.max_abs_error, found.worst_index, found.not_finite) == (2.0, BLOCK + 5, 0)


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8", "int32", "int64", "bool"])
def test_every_type_can_be_compared(dtype: str) -> None:
    want = np.array([0, 1, 1, 0]).astype(dtype)
    got = np.array([0, 1, 0, 0]).astype(dtype)
    assert compared(want, want) == Difference(0.0, 1.0, -1, 0)
    assert compared(got, want) == Difference(1.0, 1.0, 2, 0)


BOUNDED = ["int8", "uint8", "int16", "uint16", "int32", "int64", "float32", "float64"]


@pytest.mark.parametrize("dtype", BOUNDED)
def test_between_bounds(library: ctypes.CDLL, dtype: str) -> None:
    """Both comparisons say how far the farthest element lies outside of its bounds, and where."""
    rng = np.random.default_rng(3)
    least = rng.integers(20, 90, 1000).astype(dtype)
    most = (least + rng.integers(0, 3, 1000)).astype(dtype)
    want = np.concatenate([least, most])

    def both(got: NDArray[np.generic]) -> list[Difference]:
        regions = region(got), region(want)
        addresses = (item.address for item in regions)
        return [
            compare(library, dtype, *addresses, got.size, bounds=True),
            difference(dtype, *regions, got.size, bounds=True),
        ]

    for right in (least, most, ((least.astype(np.int64) + most) // 2).astype(dtype)):
        assert {(item.max_abs_error, item.not_finite, item.worst_index) for item in both(right)} == {
            (0, 0, -1)
        }
    below, above = least.copy(), most.copy()
    below[[130, 777]] -= np.array([1, 9], dtype)
    above[[0, 999]] += np.array([2, 7], dtype)
    for found, error, index in ((below, 9, 777), (above, 7, 999)):
        for item in both(found):
            assert (item.max_abs_error, item.worst_index) == (error, index)
            assert not item.within(0.0)
    if np.dtype(dtype).kind == "f":
        broken = least.copy()
        broken[[5, 600]] = np.nan
        assert [(item.not_finite, item.worst_index) for item in both(broken)] == [(2, 5)] * 2
