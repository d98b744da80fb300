"""Is what a GPU kernel wrote what was expected? Compared with numpy, which pyopencl and pycuda bring along.

The rule is check.py's; there the artifact brings native code for it, here there is none.
"""

from __future__ import annotations

import importlib
from typing import Any

from device_runtime.measure.check import Difference
from device_runtime.sandbox.guarded_memory import Region

BLOCK = 1 << 20  # elements compared at once, in float64


def difference(dtype: str, got: Region, want: Region, elements: int, bounds: bool = False) -> Difference:
    """How far `got` lies from `want`, by the rule of check.compare. Integers are exact up to 2**53."""
    if not elements:
        return Difference(0.0, 0.0, -1, 0)
    numpy: Any = importlib.import_module("numpy")
    stored = "uint16" if dtype == "bfloat16" else dtype
    left = numpy.frombuffer(got.memory, stored, elements)
    right = numpy.frombuffer(want.memory, stored, elements)
    if bounds:  # the nearest right numbers, of a NaN the least one
        most = numpy.frombuffer(want.memory, stored, 2 * elements)[elements:]
        right = numpy.where(left > right, numpy.minimum(left, most), right)
    if dtype == "bfloat16":  # the upper half of a float32
        left, right = ((item.astype("uint32") << 16).view("float32") for item in (left, right))
    error = reference = 0.0
    worst, first_bad, bad = -1, -1, 0
    for start in range(0, elements, BLOCK):
        ours = left[start : start + BLOCK].astype(numpy.float64)
        theirs = right[start : start + BLOCK].astype(numpy.float64)
        expected = numpy.isfinite(theirs)
        missing = expected & ~numpy.isfinite(ours)
        with numpy.errstate(invalid="ignore"):
            apart = numpy.abs(ours - theirs)
        same = (ours == theirs) | (numpy.isnan(ours) & numpy.isnan(theirs))
        apart[~expected] = numpy.where(same[~expected], 0.0, numpy.inf)
        apart[missing] = 0.0
        if missing.any() and not bad:
            first_bad = start + int(missing.argmax())
        bad += int(missing.sum())
        reference = max(reference, float(numpy.abs(theirs[expected]).max(initial=0.0)))
        if apart.max(initial=0.0) > error:
            error, worst = float(apart.max()), start + int(apart.argmax())
    return Difference(error, reference, first_bad if bad else worst, bad)
