"""Every GPU of a board file is described in full, with figures that a GPU can have, from named sources."""

from __future__ import annotations

import pytest

from boards.board import Board, board_names, load
from boards.target import GpuLimits, Target

GPUS = {
    (board.name, target.name): (board, target)
    for board in map(load, board_names())
    for target in board.targets
    if target.gpu is not None
}
MALIS = [key for key, (_, target) in GPUS.items() if target.kind == "opencl" and not target.is_pocl]
CUDAS = [key for key, (_, target) in GPUS.items() if target.kind == "cuda"]
REGISTERS = {"sm_52": 65536, "sm_53": 32768, "sm_60": 65536, "sm_87": 65536, "sm_90": 65536}
"""Of a block, by CUDA's table of technical specifications per compute capability."""


def facts(key: tuple[str, str]) -> tuple[Board, Target, GpuLimits]:
    board, target = GPUS[key]
    assert target.gpu is not None
    return board, target, target.gpu


def test_the_gpus_of_the_design_are_there() -> None:
    assert {board for board, _ in CUDAS} == {
        "jetson-nano",
        "jetson-orin-nano",
        "titan-x",
        "p100",
        "h100",
        "h200",
    }
    assert {board for board, _ in MALIS} == {"rock960", "firefly-rk3399", "odroid-n2", "hikey970", "rock-5b"}
    assert set(GPUS) == {*CUDAS, *MALIS, ("pocl", "opencl")}


@pytest.mark.parametrize("key", GPUS, ids="-".join)
def test_launches_and_speed_are_in_range(key: tuple[str, str]) -> None:
    _, target, gpu = facts(key)
    assert 256 <= gpu.max_threads_per_block <= 4096
    assert 64 <= min(gpu.max_block_dims) <= gpu.threads_of_a_launch <= gpu.max_threads_per_block
    assert 16 << 10 <= gpu.shared_memory_bytes <= 64 << 10
    assert gpu.warp_size in (1, 4, 8, 16, 32)
    assert 1 <= gpu.compute_units <= 200
    assert gpu.vector_float_lanes <= gpu.vector_lanes() <= 16
    assert 0.3e9 <= target.clock_hz <= 6e9
    assert 8 <= target.flops_per_cycle <= 256
    assert 128 << 10 <= target.l2_bytes <= 64 << 20


@pytest.mark.parametrize("key", [*MALIS, *CUDAS], ids="-".join)
def test_peak_bandwidth_and_sources(key: tuple[str, str]) -> None:
    board, target, gpu = facts(key)
    assert target.bandwidth_gbs is not None
    balance = target.estimated_peak_gflops / target.bandwidth_gbs  # operations for each byte of main memory
    assert 2 <= balance <= 30
    wanted = "cuda-c-programming-guide" if target.kind == "cuda" else "OpenCL developer guide"
    assert any(wanted in source for source in board.sources)
    assert target.estimated_peak_gflops == target.clock_hz * target.flops_per_cycle * gpu.compute_units / 1e9


@pytest.mark.parametrize("key", CUDAS, ids="-".join)
def test_limits_of_cuda_are_those_of_the_compute_capability(key: tuple[str, str]) -> None:
    _, _, gpu = facts(key)
    assert (gpu.max_threads_per_block, gpu.max_block_dims) == (1024, (1024, 1024, 64))
    assert (gpu.shared_memory_bytes, gpu.shared_memory_on_chip, gpu.warp_size) == (48 << 10, True, 32)
    assert (gpu.registers_per_thread, gpu.registers_per_block) == (255, REGISTERS[gpu.compute_capability])
    assert gpu.registers_of_a_launch == gpu.registers_per_block


@pytest.mark.parametrize("key", MALIS, ids="-".join)
def test_a_mali_has_registers_and_no_memory_of_its_own(key: tuple[str, str]) -> None:
    _, _, gpu = facts(key)
    assert not gpu.shared_memory_on_chip
    assert gpu.registers_per_thread == 64
    assert gpu.registers_per_block in (64 * 64, 384 * 64, 512 * 64), (
        "threads of 64 registers that a core holds"
    )
    assert gpu.registers_of_a_launch == 0, "the compiler spills"
    assert gpu.vector_lanes() == 16
