"""What code for a target needs of a CPU, in Linux's words."""

from __future__ import annotations

import msgspec
import pytest

from boards.board import load
from boards.features import LEVELS, missing_flags, needed_flags
from tests.targets import AVX2

SAPPHIRE_RAPIDS = LEVELS["x86-64-v4"] | {"avx512_vnni", "avx512_bf16", "amx_tile", "avx_vnni", "pni"}


@pytest.mark.parametrize(
    ("changes", "flags", "missing"),
    [
        ({}, LEVELS["x86-64-v3"], ()),
        ({}, LEVELS["x86-64-v3"] - {"fma"}, ("fma",)),
        ({"cpu": "x86-64-v2"}, LEVELS["x86-64-v2"], ("avx",)),  # its vectors have 32 bytes
        ({"vector_bytes": 64}, LEVELS["x86-64-v3"], ("avx512dq", "avx512f", "avx512vl")),
        ({"cpu": "x86-64-v4", "features": ("+avx512vnni", "-amx-tile")}, SAPPHIRE_RAPIDS, ()),
        ({"features": ("+avxvnni", "+sse3")}, LEVELS["x86-64-v3"], ("avxvnni", "pni")),
        ({"cpu": "znver4", "features": ("+prefer-256-bit",)}, frozenset({"avx"}), ()),
    ],
)
def test_what_is_missing_is_named(
    changes: dict[str, object], flags: frozenset[str], missing: tuple[str, ...]
) -> None:
    assert missing_flags(needed_flags(msgspec.structs.replace(AVX2, **changes)), flags) == missing


def test_every_arm_board_needs_what_every_64_bit_arm_has() -> None:
    flags = frozenset(["fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "cpuid"])
    for name in ("rpi3b", "rock960", "jetson-nano"):
        for target in load(name).targets:
            assert not missing_flags(needed_flags(target), flags)
    orin = load("jetson-orin-nano").target("a78")
    assert missing_flags(needed_flags(orin), flags) == ("asimddp", "asimdhp")
