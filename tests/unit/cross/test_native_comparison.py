"""How the native code compares what a kernel wrote with what was expected."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from tests import native_probes

KINDS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "i32": np.int32}
SIZES = [0, 1, 2, 7, 1023, 1024, 1025, 5000]


class Difference(ctypes.Structure):
    _fields_ = [
        ("max_abs_error", ctypes.c_double),
        ("max_abs_reference", ctypes.c_double),
        ("worst_index", ctypes.c_int64),
        ("not_finite", ctypes.c_int64),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return native_probes.load(tmp_path_factory.mktemp("native"))


def _compare(library: ctypes.CDLL, kind: str, got: np.ndarray, want: np.ndarray) -> Difference:
    difference = Difference()
    status = getattr(library, f"tfb_compare_{kind}")(
        got.ctypes.data, want.ctypes.data, len(got), ctypes.byref(difference)
    )
    assert status == 0
    return difference


def _expected(got: np.ndarray, want: np.ndarray) -> tuple[float, float, int]:
    """Largest error, largest reference, wrongly not finite; by the header's words, with numpy."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    error = np.where(np.isfinite(want), np.where(np.isfinite(got), error, 0.0), np.where(same, 0.0, np.inf))
    reference = np.abs(want[np.isfinite(want)])
    wrongly = np.isfinite(want) & ~np.isfinite(got)
    return float(error.max(initial=0.0)), float(reference.max(initial=0.0)), int(wrongly.sum())


@pytest.mark.parametrize(("kind", "size"), list(itertools.product(KINDS, SIZES)))
def test_differences_are_numpys(library: ctypes.CDLL, kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    want = (rng.standard_normal(size) * 1000).astype(KINDS[kind])
    for wrong in range(0, min(size, 9), 3):
        got = want.copy()
        at = rng.choice(size, wrong, replace=False) if size else []
        got[at] += np.arange(1, wrong + 1, dtype=KINDS[kind]) * 7
        found = _compare(library, kind, got, want)
        error, reference, _ = _expected(got, want)
        assert found.max_abs_error == pytest.approx(error, rel=1e-6)
        assert found.max_abs_reference == reference
        assert found.not_finite == 0
        worst = int(np.argmax(np.abs(got.astype(np.float64) - want.astype(np.float64)))) if wrong else -1
        assert found.worst_index == worst


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES[1:])
def test_what_is_not_finite_is_found_anywhere(library: ctypes.CDLL, kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    want = rng.standard_normal(size).astype(KINDS[kind])
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        got = want + KINDS[kind](0.5)
        at = np.sort(rng.choice(size, min(size, 3), replace=False))
        got[at] = value
        found = _compare(library, kind, got, want)
        error, reference, wrongly = _expected(got, want)
        assert (found.not_finite, found.worst_index) == (wrongly, at[0])
        assert found.max_abs_error == pytest.approx(error, rel=1e-6)
        assert found.max_abs_reference == reference


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_an_expected_infinity_or_nan_must_be_met(library: ctypes.CDLL, kind: str) -> None:
    want = np.array([1.0, np.inf, -np.inf, np.nan, 2.0], KINDS[kind])
    same = _compare(library, kind, want, want)
    assert (same.max_abs_error, same.max_abs_reference, same.worst_index, same.not_finite) == (
        0.0,
        2.0,
        -1,
        0,
    )
    for position, value in ((1, -np.inf), (1, 5.0), (2, np.nan), (3, 0.0)):
        got = want.copy()
        got[position] = value
        found = _compare(library, kind, got, want)
        assert (found.max_abs_error, found.worst_index, found.not_finite) == (np.inf, position, 0)


def test_the_largest_numbers_do_not_overflow_the_verdict(library: ctypes.CDLL) -> None:
    largest = np.finfo(np.float32).max
    found = _compare(library, "f32", np.array([largest], np.float32), np.array([-largest], np.float32))
    assert found.max_abs_error == 2.0 * float(largest)
    extremes = np.array([2**31 - 1], np.int32), np.array([-(2**31)], np.int32)
    assert _compare(library, "i32", *extremes).max_abs_error == 2.0**32 - 1


def test_a_null_pointer_is_refused(library: ctypes.CDLL) -> None:
    difference = Difference()
    for kind in KINDS:
        compare = getattr(library, f"tfb_compare_{kind}")
        assert compare(None, None, 3, ctypes.byref(difference)) == -2
        assert compare(None, None, -1, ctypes.byref(difference)) == -2
        assert compare(None, None, 0, ctypes.byref(difference)) == 0
