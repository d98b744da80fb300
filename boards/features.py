"""Features of CPUs: what a target needs of one, in the words of /proc/cpuinfo, and the levels of x86-64.

The levels are those of the psABI (gitlab.com/x86-psABIs/x86-64-ABI, table "Micro-Architecture Levels").
"""

from __future__ import annotations

import re
from typing import Final

from boards.target import Target

_V2: Final = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3: Final = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_V4: Final = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
LEVELS: Final = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""LLVM's CPU names of the levels, and the flags of a CPU that has them."""

_X86_VECTORS: Final = {32: frozenset({"avx"}), 64: frozenset({"avx512dq", "avx512f", "avx512vl"})}
# LLVM's names to Linux's flags, where they differ by more than their separators (arch/*/kernel/cpu*)
_FLAGS: Final = {
    "neon": "asimd", "fp-armv8": "fp", "fullfp16": "asimdhp", "dotprod": "asimddp", "rdm": "asimdrdm",
    "lse": "atomics", "crc": "crc32", "bmi": "bmi1", "sse3": "pni",
}  # fmt: skip
_CHECKED: Final = re.compile(
    r"(sse|ssse|pni|avx|amx|fma|f16c|bmi|asimd|fp$|atomics|crc32|i8mm|bf16|sve)"
)  # others have no flag, or one that no rule gives


def needed_flags(target: Target) -> frozenset[str]:
    """Flags without which a CPU cannot run code for the target, as far as they are known."""
    needed = set(LEVELS.get(target.cpu, ()))
    if target.triple.startswith("x86_64"):
        needed |= _X86_VECTORS.get(target.vector_bytes, frozenset())
    wanted = (feature[1:] for feature in target.features if feature.startswith("+"))
    return frozenset(needed.union(flag for flag in map(flag_of, wanted) if _CHECKED.match(flag)))


def missing_flags(needed: frozenset[str], flags: frozenset[str]) -> tuple[str, ...]:
    """What is needed and not there; avx512_vnni is the same as LLVM's avx512vnni."""
    there = {_plain(flag) for flag in flags}
    return tuple(sorted(flag for flag in needed if _plain(flag) not in there))


def flag_of(feature: str) -> str:
    """The flag of an LLVM feature, but for separators."""
    return _FLAGS.get(feature, feature)


def _plain(flag: str) -> str:
    return re.sub(r"[^a-z0-9]", "", flag)
