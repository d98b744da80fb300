"""Targets that many tests compile for: of no machine in particular, and of this one at each of its levels."""

from __future__ import annotations

import msgspec
import pytest

from boards.board import UnknownLevel, load
from boards.target import Target

AVX2 = Target(
    name="cpu",
    kind="cpu",
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64-v3",
    vector_bytes=32,
    vector_registers=16,
    l2_bytes=1 << 20,
    clock_hz=2e9,
    flops_per_cycle=32.0,
)


def _level(level: str) -> list[Target]:
    try:
        return [load(f"host:{level}").target()]
    except UnknownLevel:
        return []


HOST = load("host").target()
LEVELS = tuple(
    target
    for level in ("x86-64-v2", "x86-64-v3", "x86-64-v3+avxvnni", "x86-64-v4", "x86-64-v4+avx512vnni")
    for target in _level(level)
)
HOSTS = (HOST, *LEVELS)
"""This machine as it is, and narrowed to each level of x86-64 that it has: any of them runs here."""

EACH_HOST = [
    pytest.param(
        target, id="".join([target.cpu, *target.features]), marks=[pytest.mark.slow] * (target != HOST)
    )
    for target in HOSTS
]
"""They as the parameters of a test, of which the quick tests run the first."""

AVX2_TWO_CORES = msgspec.structs.replace(AVX2, cores=(0, 1))
