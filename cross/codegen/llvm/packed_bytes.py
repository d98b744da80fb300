"""Bytes of rounded floats on x86-64: four vectors of 32-bit integers become one vector of bytes.

    packssdw (a, b), (c, d)    32 to 16 bits, saturating; in each 128-bit part of a vector by itself
    paddsw   + zero point      saturating, so that what lies out of the byte's range stays out of it
    packuswb or packsswb       16 to 8 bits, saturating
    vpermd                     the parts of a, then those of b, c and d

The byte's range needs no instructions of its own then. Source: Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 2.
"""

from __future__ import annotations

import functools
from typing import Final

import msgspec

from boards.features import needed_flags
from boards.target import Target
from cross.codegen.instructions import Instruction, Value, call, literal, shuffle
from cross.codegen.llvm.arithmetic import Arithmetic
from cross.codegen.llvm.objects import cpu_and_features

VECTORS: Final = 4  # of 32-bit integers that have as many lanes together as one of bytes
PART: Final = 4  # 32-bit lanes of the 128 bits that a pack keeps together

WITHIN: Final = 2.0**30
"""Rounded floats up to here are 32-bit integers; any bound from 2^15 to 2^31 - 128 would do."""

_NEAREST: Final = 4  # the rounding mode of MXCSR, as an operand of the instruction for 512 bits


class _Instructions(msgspec.Struct, frozen=True):
    """LLVM's names of those for vectors of one length, behind `llvm.x86.`, and the feature that has them."""

    feature: str
    round: str
    narrow: str
    unsigned: str
    signed: str


_BY_LANES: Final = {
    4: _Instructions("", "sse2.cvtps2dq", "sse2.packssdw.128", "sse2.packuswb.128", "sse2.packsswb.128"),
    8: _Instructions("avx2", "avx.cvt.ps2dq.256", "avx2.packssdw", "avx2.packuswb", "avx2.packsswb"),
    16: _Instructions(
        "avx512bw",
        "avx512.mask.cvtps2dq.512",
        "avx512.packssdw.512",
        "avx512.packuswb.512",
        "avx512.packsswb.512",
    ),
}


@functools.cache
def packed_lanes(target: Target) -> frozenset[int]:
    """Lengths of the vectors of floats of which a target packs the bytes."""
    if not target.triple.startswith("x86_64"):
        return frozenset()
    host = (name[1:] for name in cpu_and_features(target)[1].split(",") if name.startswith("+"))
    known = {"", *needed_flags(target), *host}
    return frozenset(lanes for lanes, found in _BY_LANES.items() if found.feature in known)


class PackedBytes:
    """Writes bytes at the current place of a writer."""

    def __init__(self, arithmetic: Arithmetic, target: Target) -> None:
        self.arithmetic = arithmetic
        self.writer = arithmetic.writer
        self.lanes = packed_lanes(target)

    def rounded(self, number: Value) -> Value:
        """A float32 rounded to an int32, halves to even; the least int32 where it is none."""
        operands = [number]
        if number.lanes == 16:
            operands += [
                self._splat(0, "int32", 16),
                literal(-1, "int16"),  # a mask of all lanes
                literal(_NEAREST, "int32"),
            ]
        return self._call(_BY_LANES[number.lanes].round, "int32", number.lanes, operands)

    def packed(self, integers: list[Value], zero: int, dtype: str) -> Value:
        """One to four vectors of int32 plus `zero`, each lane the nearest byte: a vector of the bytes of the
        first, then the second, and so on. What stands for vectors that are not there is not to be read."""
        lanes = integers[0].lanes
        found = _BY_LANES[lanes]
        rest = [integers[-1]] * (-len(integers) % 2)
        pairs = [*integers, *rest]
        halves = [
            self._call(found.narrow, "int16", 2 * lanes, pairs[place : place + 2])
            for place in range(0, len(pairs), 2)
        ]
        if zero:
            added = self._splat(zero, "int16", 2 * lanes)
            halves = [self.arithmetic.intrinsic("llvm.sadd.sat", [half, added]) for half in halves]
        pack = found.signed if dtype == "int8" else found.unsigned
        together = self._call(pack, dtype, VECTORS * lanes, [halves[0], halves[-1]])
        if lanes == PART:
            return together
        words = self.writer.value(Instruction("bitcast", "int32", lanes, (together,)))
        order = tuple(part * VECTORS + vector for vector in range(VECTORS) for part in range(lanes // PART))
        words = self.writer.value(shuffle(words, order))
        return self.writer.value(Instruction("bitcast", dtype, VECTORS * lanes, (words,)))

    def _splat(self, number: int, dtype: str, lanes: int) -> Value:
        return self.writer.splat(literal(number, dtype), lanes)

    def _call(self, name: str, dtype: str, lanes: int, operands: list[Value]) -> Value:
        function, result = f"llvm.x86.{name}", Value("", dtype, lanes)
        self.writer.declare(f"{result.type} @{function}({', '.join(item.type for item in operands)})")
        return self.writer.value(call(function, dtype, lanes, operands))
