"""Calls with the iterations of parallel loops apart, of a kernel whose loop is a Python function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import native_probes

SIZES = (3 * 4096 + 100, 1, 5000)  # of what is written: pieces of 4096 bytes, and rests
EXTENT = 7
MET = -5
Bytes = NDArray[np.uint8]
Body = Callable[[list[Bytes], int], None]


class Written(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return native_probes.load(tmp_path_factory.mktemp("native"))


def called(library: ctypes.CDLL, body: Body, partition: int) -> tuple[int, list[Bytes]]:
    """The status of a call whose one parallel loop has this body, and what it has written."""
    arrays = [np.full(size, 0xA5, np.uint8) for size in SIZES]

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    def iterations(closure: object, begin: int, end: int) -> None:
        for index in range(begin, end):
            body(arrays, index)

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def kernel(buffers: object, workspace: object, pool: object) -> int:
        function = ctypes.cast(iterations, ctypes.c_void_p)
        return int(library.tfb_parallel_for(None, function, None, ctypes.c_int64(EXTENT)))

    written = (Written * len(arrays))(*[Written(array.ctypes.data, array.nbytes) for array in arrays])
    address = ctypes.cast(kernel, ctypes.c_void_p)
    return library.tfb_call(address, None, None, None, written, len(arrays), partition), arrays


@pytest.mark.parametrize("partition", range(6))
def test_every_byte_is_what_its_iteration_wrote(library: ctypes.CDLL, partition: int) -> None:
    def body(arrays: list[Bytes], index: int) -> None:
        arrays[0][index::EXTENT] = index
        arrays[2][index * 100 : index * 100 + 50] = 10 + index
        if index == 3:
            arrays[1][0] = 3

    expected = [np.full(size, 0xA5, np.uint8) for size in SIZES]
    for index in range(EXTENT):
        body(expected, index)
    status, found = called(library, body, partition)
    assert status == 0
    for array, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("partition", range(6))
@pytest.mark.parametrize("place", [(0, 0), (0, 4095), (0, 3 * 4096 + 99), (1, 0), (2, 4999)])
def test_iterations_that_write_different_values_to_one_place_are_found(
    library: ctypes.CDLL, place: tuple[int, int], partition: int
) -> None:
    array, offset = place

    def own(arrays: list[Bytes], index: int) -> None:
        arrays[array][offset] = index

    def same(arrays: list[Bytes], index: int) -> None:
        arrays[array][offset] = 1

    assert called(library, own, partition)[0] == MET
    status, found = called(library, same, partition)
    assert (status, found[array][offset]) == (0, 1)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 8])
def test_a_stale_index_is_both_before_and_behind_every_array(library: ctypes.CDLL, stride: int) -> None:
    """Twice 0x7E7E... has wrapped: a border that is decided by twice an index believed it to be small."""
    left = np.zeros(3, np.int64)
    for call in range(3):
        buffers = (ctypes.c_void_p * 1)(left.ctypes.data + 8 * call)
        assert library.tfb_call(library.stale, buffers, None, None, None, 0, 0) == 0
    found = left * stride
    assert found.min() < -(2**40) and found.max() > 2**40
