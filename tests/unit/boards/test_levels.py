"""This machine narrowed to a level of x86-64, by NAME:LEVEL."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from boards.board import UnknownLevel, load
from boards.features import LEVELS
from boards.probe import Caches, HostFacts, Vectors

ZEN4 = HostFacts(
    architecture="x86_64", model="AMD EPYC 9R14", machine="AuthenticAMD-25-17-1", cores=(0, 1),
    vectors=Vectors(64, 32, 32.0), caches=Caches(), clock_hz=3.7e9, memory_bytes=1 << 34,
    flags=LEVELS["x86-64-v4"] | {"avx512_vnni", "avx512_bf16"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("level", "vector_bytes", "registers", "features"),
    [
        ("x86-64-v2", 16, 16, ()),
        ("x86-64-v3", 32, 16, ()),
        ("x86-64-v4", 64, 32, ()),
        ("x86-64-v4+avx512vnni+avx512bf16", 64, 32, ("+avx512vnni", "+avx512bf16")),
    ],
)
def test_a_level_is_another_target_of_the_same_board(
    level: str, vector_bytes: int, registers: int, features: tuple[str, ...]
) -> None:
    whole, board = load("host", facts=ZEN4), load(f"host:{level}", facts=ZEN4)
    target = board.target()
    assert (board.name, target.cpu, target.features) == ("host", level.partition("+")[0], features)
    assert (target.vector_bytes, target.vector_registers, target.cores) == (vector_bytes, registers, (0, 1))
    assert target.key != whole.target().key


def test_vectors_of_opencl_are_narrowed_too() -> None:
    lanes = {}
    for name in ("pocl", "pocl:x86-64-v3", "pocl:x86-64-v2"):
        gpu = load(name, facts=ZEN4).target("opencl").gpu
        assert gpu is not None
        lanes[name] = gpu.vector_lanes()
    assert list(lanes.values()) == [16, 8, 4]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("host:x86-64-v3+avxvnni", "this machine's CPU has no avxvnni"),
        ("host:x86-64-v9", "levels are x86-64-v2, x86-64-v3, x86-64-v4"),
        ("host:", "levels are x86-64-v2"),
        ("rpi3b:x86-64-v3", "only a board that is this machine has levels"),
    ],
)
def test_what_is_no_level_of_this_machine_is_refused(name: str, words: str) -> None:
    with pytest.raises(UnknownLevel, match=words) as refusal:
        load(name, facts=ZEN4)
    assert refusal.value.exit_code == 2


def test_an_arm_host_has_no_such_levels() -> None:
    with pytest.raises(UnknownLevel, match="of a machine that is x86_64"):
        load("host:x86-64-v2", facts=replace(ZEN4, architecture="aarch64"))
