"""The door of the schedule room: which space a target gets."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.replay.operators import operator
from boards.board import load
from cross.errors import ScheduleError
from cross.schedule import cpu_space, gpu_space, space_of
from tests.targets import AVX2

POCL = load("pocl").target(None)


def test_the_kind_of_target_decides() -> None:
    tiny = operator("tiny")
    assert space_of(tiny, AVX2).key == cpu_space(tiny, AVX2).key
    assert space_of(tiny, POCL).key == gpu_space(tiny, POCL).key
    assert space_of(tiny, AVX2).key != space_of(tiny, POCL).key


def test_without_winograd_a_convolution_has_one_algorithm_on_a_cpu() -> None:
    convolution = operator("tiny")
    direct = space_of(convolution, AVX2, winograd=False)
    assert direct.key == cpu_space(convolution, AVX2, winograd=False).key
    assert direct.key != space_of(convolution, AVX2).key


def test_a_gpu_without_limits_is_refused() -> None:
    with pytest.raises(ScheduleError, match="expected one with GPU limits"):
        space_of(operator("tiny"), msgspec.structs.replace(POCL, gpu=None))
