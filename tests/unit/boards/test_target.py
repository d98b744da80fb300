"""The key of a target changes exactly with what changes the generated code."""

from __future__ import annotations

import msgspec
import pytest

from boards.board import load
from boards.target import Target

A72 = load("rock960").target("a72")
MALI = load("rock960").target("mali")


@pytest.mark.parametrize(
    "change",
    [
        {"triple": "x86_64-unknown-linux-gnu"},
        {"cpu": "cortex-a53"},
        {"features": ()},
        {"vector_bytes": 32},
        {"cores": (4,)},
        {"machine": "Arm-1"},
    ],
)
def test_the_key_changes_with_the_code(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(A72, **change).key != A72.key


@pytest.mark.parametrize(
    "change",
    [{"name": "big"}, {"cores": (0, 1)}, {"clock_hz": 1e9}, {"peak_gflops": 20.0}, {"bandwidth_gbs": 1.0}],
)
def test_the_key_stays_with_everything_else(change: dict[str, object]) -> None:
    assert msgspec.structs.replace(A72, **change).key == A72.key


def test_keys_are_pinned_because_records_are_kept_by_them() -> None:
    assert A72.key == "cpu/aarch64-unknown-linux-gnu/cortex-a72/+neon/vector16/threads2"
    assert MALI.key == "opencl/any/threads256/shared0/registers64/warp1/lanes16"
    assert load("h200").target().key == "cuda/sm_90/threads1024/shared49152/registers65536/warp32/lanes4"


def test_lanes_and_threads() -> None:
    assert (A72.threads, A72.vector_lanes(), A72.vector_lanes(8), A72.vector_lanes(32)) == (2, 4, 2, 1)


def test_a_measured_peak_replaces_the_estimate() -> None:
    assert A72.estimated_peak_gflops == pytest.approx(28.8)
    assert msgspec.structs.replace(A72, peak_gflops=25.0).estimated_peak_gflops == 25.0


def test_a_measured_bandwidth_counts_more_than_the_specification_s() -> None:
    stated = msgspec.structs.replace(A72, bandwidth_gbs=12.8)
    assert stated.memory_gbs == 12.8
    assert msgspec.structs.replace(stated, measured_bandwidth_gbs=6.0).memory_gbs == 6.0
    assert MALI.estimated_peak_gflops == pytest.approx(4 * 16 * 0.8)


def test_a_target_is_hashable_and_frozen() -> None:
    assert {A72: 1}[load("rock960").target("a72")] == 1
    with pytest.raises(AttributeError):
        A72.name = "other"  # type: ignore[misc]
    assert isinstance(A72, Target)
