"""Vectors of elements that lie apart: each one right, and nothing is read but what lies between them."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np
import pytest

from boards.target import Target
from cross.compile import compile
from cross.expression import Operator, placeholder
from cross.expression.families.data_movement import strided_slice
from cross.loopnest import Programs
from cross.schedule import cpu_space
from device_runtime.sandbox.guarded_memory import Region
from tests.fuzz.kernels import loaded
from tests.quick import others_slow
from tests.targets import EACH_HOST

STEPS = (-5, -4, -3, -2, -1, 2, 3, 4, 5)
COUNTS = {"float32": (2, 3, 32, 70), "uint16": (2, 3, 32, 70)}  # of other dtypes: a part of a vector, several


@pytest.mark.parametrize("target", EACH_HOST)
@pytest.mark.parametrize("dtype", others_slow(["float32", "float64", "int8", "uint16", "bool"], *COUNTS))
def test_slices_with_steps(dtype: str, target: Target, tmp_path: Path) -> None:
    """Slices from the first element of a buffer or to its last one, beside pages that nobody may touch."""
    rng = np.random.default_rng(3)
    in_a_line = 64 // np.dtype(dtype).itemsize  # elements: buffers of whole lines end where the page begins
    for count in COUNTS.get(dtype, (3, 70)):
        nests, slices = [], []
        for step, at_start in itertools.product(STEPS, (True, False)):
            span = (count - 1) * abs(step) + 1
            size = -(-span // in_a_line) * in_a_line
            first = 0 if at_start else size - span
            source = placeholder((size,), "x", dtype)
            taken = strided_slice(source, (first if step > 0 else first + span - 1,), (step,), (count,))
            space = cpu_space(Operator("slice", (source,), taken), target)
            nests.append((f"k{len(nests)}", Programs(space).nest(space.default())))
            slices.append((size, first, span, step))
        library = loaded(compile(nests, target), tmp_path)
        for number, (size, first, span, step) in enumerate(slices):
            data = rng.integers(0, 2 if dtype == "bool" else 100, size).astype(dtype)
            given, output = Region(data.nbytes, first == 0), Region(count * data.itemsize)
            given.memory[:] = data.tobytes()
            buffers = (ctypes.c_void_p * 2)(given.address, output.address)
            assert library[f"k{number}"](buffers, None, None) == 0
            found = np.frombuffer(output.memory, dtype)
            np.testing.assert_array_equal(found, data[first : first + span][::step])
