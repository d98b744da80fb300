"""Board files from what boards say: an RK3399 by its /proc and /sys, a Jetson and a Mali by their drivers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from boards.board import Board, load, parsed
from boards.description import Link
from device_runtime.measure import board_facts
from tests.unit.boards.test_probe import CPU, RK3399, cache, machine
from toolkit.errors import InputError
from toolkit.measure.new_board import described
from toolkit.measure.replies import Probe, reply_of

PATH = Path("mine.toml")
BARE = Board(name="mine", title="", description="", sources=("a test",), link=Link(kind="ssh", host="mine"))
GPU = {"clock_hz": 900_000_000, "memory_bytes": 1 << 32, "max_threads_per_block": 256, "float16": True,
       "max_block_dims": [256, 256, 256], "compute_units": 4, "shared_memory_bytes": 32768}  # fmt: skip
MALI = {**GPU, "platform": "ARM Platform", "name": "Mali-T860", "driver": "1", "version": "OpenCL 1.2",
        "vector_float_lanes": 4, "cache_bytes": 262144, "shared_memory_on_chip": False}  # fmt: skip
JETSON = {**GPU, "name": "Orin", "compute_capability": "8.7", "driver": 12000, "registers_per_block": 65536,
          "warp_size": 32, "cache_bytes": 1 << 21}  # fmt: skip


@pytest.fixture
def rk3399(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the runtime says on a board with these files, which expose the caches of cores 4 and 5 alone."""
    files = {"proc/cpuinfo": RK3399, "proc/meminfo": "MemTotal: 3912252 kB\nMemAvailable: 1 kB"}
    for core in range(6):
        files[f"{CPU}/cpu{core}/cpufreq/cpuinfo_max_freq"] = "1416000" if core < 4 else "1800000"
        files[f"{CPU}/cpu{core}/cpufreq/scaling_max_freq"] = "1416000" if core < 4 else "1800000"
    for core in (4, 5):
        files |= cache(core, 0, 1, "Data", "32K") | cache(core, 1, 1, "Instruction", "48K")
        files |= cache(core, 2, 2, "Unified", "1024K")
    root = machine(tmp_path, files)
    read = board_facts._text
    monkeypatch.setattr(board_facts, "_text", lambda *path: read(str(root) + os.path.join(*path)))
    monkeypatch.setattr(board_facts, "CPU_DIR", f"/{CPU}")
    monkeypatch.setattr(board_facts.glob, "glob", lambda found, real=board_facts.glob.glob: [
        name.removeprefix(str(root)) for name in real(str(root) + found)
    ])  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    said = board_facts.probe(str(tmp_path), gpus=False)
    return {**said, "machine": "aarch64"}


def written(said: dict[str, Any], like: Board | None = None, **given: dict[str, Any]) -> Board:
    """The board in the file."""
    text, _ = described(BARE, reply_of(Probe, said), like, {key or "": dict(of) for key, of in given.items()})
    return parsed(text.encode(), PATH)


def test_clusters_of_cores_are_targets(rk3399: dict[str, Any]) -> None:
    board = written(rk3399, a53={"l2_bytes": 524288})
    big = load("rock960").target("a72")
    little, found = board.target("a53"), board.target("a72")
    assert (little.cores, little.clock_hz, little.l2_bytes) == ((0, 1, 2, 3), 1.416e9, 524288)
    assert (found.key, found.cores, found.l2_bytes) == (big.key, big.cores, big.l2_bytes)
    assert (found.l1i_bytes, found.flops_per_cycle) == (49152, big.flops_per_cycle)


def test_what_nobody_knows_is_asked_for(rk3399: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"(?s)--like:\n  --set a53.l2_bytes=...: level 2 cache .* bytes; `lscpu"
    ):
        written(rk3399)
    with pytest.raises(InputError, match="--set a99...: the board has no such target, only a53, a72"):
        written(rk3399, a53={"l2_bytes": 524288}, a99={"l2_bytes": 1})
    with pytest.raises(InputError, match="the board is armv7l: expected x86_64 or aarch64"):
        written(rk3399 | {"machine": "armv7l"})


def test_a_similar_board_knows_the_rest(rk3399: dict[str, Any]) -> None:
    like = load("rock960")
    said = rk3399 | {"opencl": [MALI]}
    text, copied = described(BARE, reply_of(Probe, said), like, {})
    assert {"a53.l2_bytes", "mali-t860.flops_per_cycle", "mali-t860.warp_size"} <= set(copied)
    assert f"flops_per_cycle = {like.target('mali').flops_per_cycle}  # as rock960 has it\n" in text
    mali = parsed(text.encode(), PATH).target("mali-t860")
    assert mali.gpu is not None and not mali.gpu.shared_memory_on_chip
    assert (mali.clock_hz, mali.gpu.compute_units) == (9e8, 4)
    with pytest.raises(InputError, match="--set mali-t860.flops_per_cycle=...: float32 operations"):
        written(said, a53={"l2_bytes": 524288})


def test_a_cuda_device_says_everything(rk3399: dict[str, Any]) -> None:
    board = written(rk3399 | {"cuda": [JETSON]}, a53={"l2_bytes": 524288})
    gpu, shipped = board.target("gpu"), load("jetson-orin-nano").target("gpu")
    assert gpu.gpu is not None and shipped.gpu is not None
    assert gpu.gpu.compute_capability == shipped.gpu.compute_capability
    assert gpu.flops_per_cycle == shipped.flops_per_cycle
    assert gpu.gpu.registers_per_thread == shipped.gpu.registers_per_thread
