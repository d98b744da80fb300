"""Sums of products of bytes by the instructions that processors have for them.

x86-64 with VNNI: `vpdpbusd` multiplies bytes without sign by bytes with one, and adds four products to each
32-bit lane. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD.
"""

from __future__ import annotations

import functools
from typing import Final

from boards.target import Target
from cross.codegen.instructions import Value, call
from cross.codegen.llvm.arithmetic import Arithmetic
from cross.codegen.llvm.objects import cpu_and_features

_LANES: Final = {"+avx512vnni": (16,), "+avxvnni": (4, 8)}
"""Features and the vectors, in 32-bit lanes, that they multiply."""
_SHORT: Final = frozenset({"+avx512vnni", "+avx512vl"})  # with both, shorter vectors, too


@functools.cache
def dot_lanes(target: Target) -> frozenset[int]:
    """Lengths of vectors, in 32-bit lanes, that the target has an instruction for."""
    if not target.triple.startswith("x86_64"):
        return frozenset()
    features = set(cpu_and_features(target)[1].split(","))
    lanes = {length for feature in features & _LANES.keys() for length in _LANES[feature]}
    return frozenset(lanes | ({4, 8} if features >= _SHORT else set()))


class DotProducts:
    """Writes them at the current place of a writer."""

    def __init__(self, arithmetic: Arithmetic, target: Target) -> None:
        self.arithmetic = arithmetic
        self.target = target

    def add(self, total: Value, words: Value, weights: Value) -> Value | None:
        """total + dot4(words, weights), lane by lane; None where the target has no instruction for it."""
        operands, lanes = self.arithmetic.together(total, words, weights)
        if lanes not in dot_lanes(self.target):
            return None
        function = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        writer, kind = self.arithmetic.writer, operands[0].type
        writer.declare(f"{kind} @{function}({kind}, {kind}, {kind})")
        return writer.value(call(function, "int32", lanes, operands))
