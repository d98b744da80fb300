"""Targets that many tests compile for: of no machine in particular, so that tests agree anywhere."""

from __future__ import annotations

import msgspec

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

AVX2_TWO_CORES = msgspec.structs.replace(AVX2, cores=(0, 1))
