"""Is what the kernel wrote what was expected? Compared on the board by the artifact's own native code."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Any, Dict, Literal, Sequence, Tuple

from device_runtime.protocol import BufferRequest

PART = 128  # elements of both bounds that are compared at once
FLOOR = 1e-30  # of the allowed error, so that an expected zero may be a denormal
NATIVE = {
    "bfloat16": "tfb_compare_bf16",
    "float16": "tfb_compare_f16",
    "float32": "tfb_compare_f32",
    "float64": "tfb_compare_f64",
    "int32": "tfb_compare_i32",
}
Format = Literal["b", "B", "h", "H", "i", "I", "q", "Q", "f", "d"]
FORMATS: Dict[str, Format] = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "bool": "B",
    "float32": "f",
    "float64": "d",
}


class _Difference(ctypes.Structure):
    _fields_ = (
        ("max_abs_error", ctypes.c_double),
        ("max_abs_reference", ctypes.c_double),
        ("worst_index", ctypes.c_int64),
        ("not_finite", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Difference:
    """How far one output lies from what was expected; `not_finite` counts elements that should be finite."""

    max_abs_error: float
    max_abs_reference: float
    worst_index: int
    not_finite: int

    def within(self, rtol: float) -> bool:
        """The rule: everything finite, and max |error| <= rtol * max |expected|."""
        return self.not_finite == 0 and self.max_abs_error <= max(rtol * self.max_abs_reference, FLOOR)

    def text(self, elements: int, rtol: float) -> str:
        """What is wrong, as a sentence for the user."""
        if self.not_finite:
            return (
                f"{self.not_finite} of {elements} elements are NaN, infinite or unwritten, "
                f"the first at index {self.worst_index}"
            )
        return (
            f"max |error| {self.max_abs_error:g} at index {self.worst_index} of {elements}; "
            f"allowed {rtol:g} of max |expected| {self.max_abs_reference:g}"
        )


def checked(found: Sequence[Tuple[BufferRequest, Difference]], rtol: float) -> Dict[str, Any]:
    """The answer to a measurement that is not timed yet, from what its outputs were compared with; it has a
    "failure" where one of them is wrong."""
    answer: Dict[str, Any] = {
        "seconds": [],
        "number": 0,
        "max_abs_error": max((difference.max_abs_error for _, difference in found), default=0.0),
        "max_abs_reference": max((difference.max_abs_reference for _, difference in found), default=0.0),
    }
    for buffer, difference in found:
        if not difference.within(rtol):
            text = difference.text(buffer.elements, rtol)
            answer["failure"] = {"kind": "wrong_answer", "text": text, "signal": None}
    return answer


def compare(
    library: ctypes.CDLL, dtype: str, got_address: int, want_address: int, elements: int, bounds: bool = False
) -> Difference:
    """Compare two buffers of a dtype of the protocol; ValueError for a native comparison that refuses.

    With `bounds` the second one has the least numbers that are right, and then the largest.
    """
    if not elements:
        return Difference(0.0, 0.0, -1, 0)
    if bounds:
        right = _nearest(FORMATS[dtype], got_address, want_address, elements)
        want_address = ctypes.addressof(right)
    if dtype not in NATIVE:
        return _compare_integers(FORMATS[dtype], got_address, want_address, elements)
    function = getattr(library, NATIVE[dtype])
    function.restype = ctypes.c_int32
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Difference))
    found = _Difference()
    status = function(got_address, want_address, elements, ctypes.byref(found))
    if status != 0:
        raise ValueError(f"{NATIVE[dtype]} returned {status}")
    return Difference(found.max_abs_error, found.max_abs_reference, found.worst_index, found.not_finite)


def _nearest(code: Format, got_address: int, bounds_address: int, elements: int) -> Any:
    """The right numbers nearest to those that were written, as a buffer of ctypes; of a NaN the least one.

    Few elements have two bounds: most parts of both are the same bytes, and take no look at each element.
    """
    size = struct.calcsize(code)
    bounds = _view("B", bounds_address, 2 * elements * size)
    least, most = bounds[: elements * size], bounds[elements * size :]
    right = (ctypes.c_char * (elements * size)).from_buffer_copy(least)
    nearest, got = (_view(code, address, elements) for address in (ctypes.addressof(right), got_address))
    for start in range(0, elements, PART):
        part = slice(start * size, (start + PART) * size)
        if least[part] == most[part]:
            continue
        for place, high in enumerate(most[part].cast(code), start):
            if got[place] > nearest[place]:
                nearest[place] = min(got[place], high)
    return right


def _view(code: Format, address: int, elements: int) -> Any:
    """Elements at an address as a memoryview."""
    size_bytes = elements * struct.calcsize(code)
    return memoryview((ctypes.c_char * size_bytes).from_address(address)).cast("B").cast(code)


def _compare_integers(code: Format, got_address: int, want_address: int, elements: int) -> Difference:
    got, want = (_view(code, address, elements) for address in (got_address, want_address))
    reference = float(max(abs(min(want)), abs(max(want))))
    if got == want:
        return Difference(0.0, reference, -1, 0)
    error, index = max((abs(a - b), -i) for i, (a, b) in enumerate(zip(got, want)))
    return Difference(float(error), reference, -index, 0)
