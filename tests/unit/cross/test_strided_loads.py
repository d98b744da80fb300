"""Vectors of elements that lie apart: each one right, and nothing is read but what lies between them."""

from __future__ import annotations

import ctypes
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


@pytest.mark.parametrize("target", EACH_HOST)
@pytest.mark.parametrize(
    "dtype", others_slow(["float32", "float64", "int8", "uint16", "bool"], "float32", "uint16")
)
def test_slices_with_steps(dtype: str, target: Target, tmp_path: Path) -> None:
    """Buffers end at a page that nobody may touch, and begin behind one."""
    rng = np.random.default_rng(3)
    for count in (3, 32, 70):
        nests, sizes = [], []
        for step in STEPS:
            sizes.append((count - 1) * abs(step) + 1)
            source = placeholder((sizes[-1],), "x", dtype)
            taken = strided_slice(source, (0 if step > 0 else sizes[-1] - 1,), (step,), (count,))
            space = cpu_space(Operator("slice", (source,), taken), target)
            nests.append((f"k{len(nests)}", Programs(space).nest(space.default())))
        library = loaded(compile(nests, target), tmp_path)
        for number, (step, size) in enumerate(zip(STEPS, sizes, strict=True)):
            data = rng.integers(0, 2 if dtype == "bool" else 100, size).astype(dtype)
            for at_start in (False, True):
                given = Region(data.nbytes, at_start)
                given.memory[:] = data.tobytes()
                output = Region(count * data.itemsize)
                buffers = (ctypes.c_void_p * 2)(given.address, output.address)
                assert library[f"k{number}"](buffers, None, None) == 0
                found = np.frombuffer(output.memory, dtype)
                np.testing.assert_array_equal(found, data[::step])
