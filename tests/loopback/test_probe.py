"""The measured peak: a kernel like any other, kept with what it holds for, filled in by load_board."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from boards.board import Board, load
from boards.files import read_sealed, write_sealed
from boards.target import Target
from cross.codegen.llvm.objects import assembly, compile_ir
from tests.loopback.tune_board import HOST, POCL, board_file
from tests.targets import AVX2
from toolkit.measure.bandwidth import read_body, working_set_bytes
from toolkit.measure.peak import (
    BoardFacts,
    accumulators,
    facts_path,
    load_board,
    measure_peak,
    peak_loop,
    probe_board,
)
from toolkit.measure.session import open_session
from toolkit.report.health import check_board


@pytest.mark.slow
def test_a_probe_fills_in_the_peak(tmp_path: Path, teach: Callable[[Path], None]) -> None:
    teach(tmp_path / "device")
    path = board_file(tmp_path, HOST)
    before = load_board(path, cache_dir=tmp_path)
    assert before.target().peak_gflops is None
    found = probe_board(before, cache_dir=tmp_path)
    assert found.answer.python
    assert found.stored == facts_path(before, tmp_path)
    peak = load_board(path, cache_dir=tmp_path).target().peak_gflops
    assert peak is not None and 0.1 < peak < 1e5
    assert peak == found.facts.targets["cpu"].peak_gflops
    read = load_board(path, cache_dir=tmp_path).target().memory_gbs
    assert read is not None and 0.1 < read < 1e4
    assert read == found.facts.targets["cpu"].bandwidth_gbs


@pytest.mark.slow
def test_opencl_on_the_cpu_has_the_peak_of_the_cpu(tmp_path: Path, teach: Callable[[Path], None]) -> None:
    teach(tmp_path / "device")
    path = board_file(tmp_path, POCL)
    probe_board(load_board(path, cache_dir=tmp_path), cache_dir=tmp_path)
    board = load_board(path, cache_dir=tmp_path)
    opencl, cpu = board.targets
    assert opencl.peak_gflops == cpu.peak_gflops is not None
    assert board.target() is opencl  # the one that the board is for


def stored(tmp_path: Path, changes: dict[str, object]) -> float | None:
    """The peak that is filled in for this machine after a file with these entries was kept."""
    board = load("host")
    target = board.target()
    entry = {"key": target.key, "cores": list(target.cores), "peak_gflops": 42.0}
    content = {"facts_version": 1, "board": "host", "emulated": False, "unix_s": 0, "targets": {"cpu": entry}}
    for name, value in changes.items():
        (entry if name in entry else content)[name] = value
    path = facts_path(board, tmp_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, msgspec.json.encode(content))
    return load_board("host", cache_dir=tmp_path).target().peak_gflops


@pytest.mark.parametrize(
    "changes", [{"key": "another"}, {"cores": [9]}, {"facts_version": 3}, {"board": "rpi3b"}, {"extra": 1}]
)
def test_a_peak_of_something_else_is_not_filled_in(tmp_path: Path, changes: dict[str, object]) -> None:
    assert stored(tmp_path, {}) == 42.0
    assert stored(tmp_path, changes) is None


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    path = facts_path(load("host"), tmp_path)
    assert stored(tmp_path, {}) == 42.0
    path.write_bytes(path.read_bytes().replace(b"42.0", b"43.0"))
    assert load_board("host", cache_dir=tmp_path).target().peak_gflops is None


@pytest.mark.parametrize("name", ["host", "emulated-a53", "rock960"])
def test_the_loops_compile_for_every_cpu_target(name: str) -> None:
    for target in load(name).targets:
        if target.kind == "cpu":
            assert compile_ir(peak_loop(target, 8), target).startswith(b"\x7fELF")
            text = read_body("read", target.vector_lanes(), 1)
            assert compile_ir(text, target).startswith(b"\x7fELF")
            size = working_set_bytes(target, 1 << 30)
            assert target.l2_bytes * 4 <= size <= 1 << 27


def test_a_cpu_without_multiply_adds_multiplies_and_adds() -> None:
    """A call of fmaf for each element would be a hundredth of what the CPU can do."""
    target: Target = msgspec.structs.replace(AVX2, cpu="x86-64-v2", vector_bytes=16)
    count = accumulators(target)
    old, new = (assembly(peak_loop(item, 8), item) for item in (target, AVX2))
    assert "fmaf" not in old and (old.count("mulps"), new.count("vfmadd")) == (count, count)


@pytest.mark.parametrize(("registers", "count"), [(16, 12), (32, 24)])
def test_accumulators_stay_in_registers(registers: int, count: int) -> None:
    target: Target = msgspec.structs.replace(load("rpi3b").target(), vector_registers=registers)
    assert accumulators(target) == count


@pytest.mark.emulated
@pytest.mark.slow
def test_the_loop_runs_under_emulation_and_is_marked(emulated_board: Board, tmp_path: Path) -> None:
    with open_session(emulated_board) as session:
        assert measure_peak(session, emulated_board.target()) > 0
    found = probe_board(emulated_board, cache_dir=tmp_path)
    kept = msgspec.json.decode(read_sealed(found.stored) or b"", type=BoardFacts)
    assert kept.emulated


@pytest.mark.slow
def test_the_doctor_on_this_machine(local_board: Board, teach: Callable[[Path], None]) -> None:
    teach(Path(local_board.link.device_dir))
    health = check_board(local_board)
    assert health.reachable
    assert [check.name for check in health.checks[:3]] == ["link", "python", "machine"]
    assert all(check.remedy for check in health.checks if check.state in ("warning", "failure"))
