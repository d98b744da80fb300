"""Sums of products of bytes by the instructions that processors have for them.

- x86-64 with AMX multiplies rows by columns, with signs or without, see llvm/matrix_tiles.py.
- x86-64 with VNNI: `vpdpbusd` multiplies bytes without sign by bytes with one, and adds four products to each
  32-bit lane. Without, `pmaddwd` multiplies 16-bit numbers and adds up pairs: of data and weights that are
  widened in memory, or of the even and the odd bytes of words. `pmaddubsw` takes bytes, but its sums of two
  saturate: it is for weights within +-64 alone, with which none does. Source: Intel 64 and IA-32
  Architectures Software Developer's Manual, volume 2.
- aarch64 with products of matrices (Armv8.6, I8MM): `smmla` and `usmmla` multiply eight bytes of two rows by
  those of two columns, see scheduling/matrix_products.py.
- aarch64 with dot products (Armv8.2, DotProd): `sdot`, both operands with signs. Without, `smull` and
  `smlal` multiply bytes into 16-bit lanes, and `sadalp` adds pairs of those to 32-bit lanes: as many steps
  share the 16 bits as the weights allow, see scheduling/byte_products.py. Source: Arm Architecture Reference
  Manual for A-profile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from boards.features import needed_flags
from boards.target import Target
from cross.codegen.instructions import Instruction, Value, binary, call, conversion, literal, shuffle
from cross.codegen.llvm.arithmetic import Arithmetic
from cross.codegen.llvm.objects import cpu_and_features
from cross.codegen.scheduling import byte_products, matrix_products
from cross.expression.language.operations import (
    BYTE_BOUNDS,
    DOT_BYTES,
    EIGHTS,
    UNSIGNED_DATA,
    WEIGHT_BOUNDS,
)
from cross.expression.language.terms import Cast
from cross.loopnest.nodes import Expr
from cross.schedule.cycles import L2_SHARE
from cross.schedule.matrix_tiles import FEWEST_WORDS, ROWS

_LANES: Final = {"+avx512vnni": (16,), "+avxvnni": (4, 8)}
"""Features and the vectors, in 32-bit lanes, that they multiply."""
_SHORT: Final = frozenset({"+avx512vnni", "+avx512vl"})  # with both, shorter vectors, too
_MULTIPLY_ADD_PAIRS: Final = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}
_MULTIPLY_ADD_BYTES: Final = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw"}

_FEW_REGISTERS: Final = 16  # of vectors, up to AVX2: AVX-512 has twice as many
MANY_ROWS: Final = 16
"""Rows from which weights widened in memory pay, if they stay in the second cache: others are waited for.
Measured on one Zen 3: 1.06 to 1.15 times as fast up to 0.56 of that cache, 0.91 to 0.98 from 1.15 on."""

Evaluate = Callable[[Expr], Value]


@functools.cache
def dot_lanes(target: Target) -> frozenset[int]:
    """Lengths of vectors, in 32-bit lanes, of which the target sums products of four bytes at once."""
    features = set(cpu_and_features(target)[1].split(","))
    if target.triple.startswith("aarch64"):
        return frozenset({2, 4}) if "+dotprod" in features else frozenset()
    lanes = {length for feature in features & _LANES.keys() for length in _LANES[feature]}
    return frozenset(lanes | ({4, 8} if features >= _SHORT else set()))


def product_of(
    target: Target, largest: int, rows: int = 1, weight_bytes: int = 0, channels: int = 0, signed: bool = True
) -> str:
    """The operation, a row of OPERATIONS, by which a target multiplies bytes.

    `largest`: the magnitude that no weight exceeds, at most 128. `rows`: how many results read a weight;
    `weight_bytes`: of all weights, as bytes; `channels`: bytes of data that lie together; `signed`: whether
    these have signs.
    """
    if target.kind != "cpu":
        return "sdot4"  # their functions take both operands with signs
    if not target.triple.startswith("aarch64"):
        if target.vector_registers > _FEW_REGISTERS or dot_lanes(target):
            tiles = target.has_tiles and rows >= ROWS and channels >= DOT_BYTES["sdot4"] * FEWEST_WORDS
            return "sdot4" if tiles and signed else "dot4"
        if largest <= WEIGHT_BOUNDS["narrow_dot4"] and _multiplies_bytes(target):
            return "narrow_dot4"
        near = 2 * weight_bytes <= L2_SHARE * target.l2_bytes
        return "wide_dot2" if rows >= MANY_ROWS and near else "dot4"
    if dot_lanes(target):
        if rows > 1 and multiplies_matrices(target) and _fills_eights(channels):
            return "sdot8" if signed else "dot8"
        return "sdot4"
    return min((bound, name) for name, bound in BYTE_BOUNDS.items() if largest <= bound)[1]


@functools.cache
def multiplies_matrices(target: Target) -> bool:
    """Whether an aarch64 target has `smmla`.

    Where a core has it, it multiplies twice as many bytes as `sdot` in the same time: both take either vector
    unit of a Neoverse N2 for one cycle (Arm Neoverse N2 Software Optimization Guide, as LLVM's
    AArch64SchedNeoverseN2.td has it). Not measured by us.
    """
    return target.triple.startswith("aarch64") and "+i8mm" in cpu_and_features(target)[1].split(",")


def _fills_eights(channels: int) -> bool:
    """Whether eight bytes need no more filling than four, which data are copied for."""
    eight, four = DOT_BYTES["sdot8"], DOT_BYTES["sdot4"]
    return channels >= eight and -channels % eight == -channels % four


def _multiplies_bytes(target: Target) -> bool:
    """Whether an x86-64 target is known to have `pmaddubsw`."""
    known = needed_flags(target) & {"ssse3", "avx2"}
    return bool(known) or "+ssse3" in cpu_and_features(target)[1].split(",")


class DotProducts:
    """Writes them at the current place of a writer."""

    def __init__(self, arithmetic: Arithmetic, target: Target) -> None:
        self.arithmetic = arithmetic
        self.target = target
        self.x86 = target.triple.startswith("x86_64")

    def add(self, function: str, total: Value, words: Value, weights: Value) -> Value | None:
        """total + function(words, weights), lane by lane; None where the target has no instruction for it."""
        row = words
        (total, words, weights), lanes = self.arithmetic.together(total, words, weights)
        if function in EIGHTS:
            if row.lanes == 1 and lanes in matrix_products.LANES and multiplies_matrices(self.target):
                return self._matrix_step(function, total, row, weights)
            return self._one_by_one(function, total, words, weights)
        if function in BYTE_BOUNDS:
            return self._pairs(function, total, words, weights)
        if lanes in dot_lanes(self.target) and function == ("dot4" if self.x86 else "sdot4"):
            return self._fours(total, words, weights)
        if not self.x86:
            return None
        if lanes in dot_lanes(self.target) and function == "sdot4":
            return self._signed_fours(total, words, weights)
        if function == "wide_dot2" and lanes in _MULTIPLY_ADD_PAIRS:
            pairs = (self._as(value, "int16", 2 * lanes) for value in (words, weights))
            return self._added_pairs(total, *pairs)
        if function == "narrow_dot4" and lanes in _MULTIPLY_ADD_BYTES and _multiplies_bytes(self.target):
            return self._by_sums_of_bytes(total, words, weights)
        if function in ("dot4", "narrow_dot4") and lanes in _MULTIPLY_ADD_PAIRS:
            return self._by_pairs_of_words(total, words, weights)
        return None

    def add_one(self, left: Expr, right: Expr, total: Expr, evaluate: Evaluate) -> Value | None:
        """total + left * right of int32 made of a byte without sign and one with; None for all else.

        The other bytes of a lane with the former are 0. (`vpdpwssd`, for 16 bits, LLVM takes apart again.)
        """
        if not self.x86 or {_narrowed(left), _narrowed(right)} != {"uint8", "int8"}:
            return None
        operands, lanes = self.arithmetic.together(evaluate(left), evaluate(right))
        if lanes not in dot_lanes(self.target):
            return None
        words, weights = operands if _narrowed(left) == "uint8" else operands[::-1]
        return self._fours(self.arithmetic.writer.splat(evaluate(total), lanes), words, weights)

    def _fours(self, total: Value, words: Value, weights: Value) -> Value:
        """By one instruction."""
        lanes = total.lanes
        if self.x86:
            return self._called(f"x86.avx512.vpdpbusd.{32 * lanes}", total, total, words, weights)
        bytes_ = [self._as(value, "int8", 4 * lanes) for value in (words, weights)]
        return self._called(f"aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8", total, total, *bytes_)

    def _signed_fours(self, total: Value, words: Value, weights: Value) -> Value:
        """By the instruction for data without sign: these are 128 more, and so is a sum by 128 weights."""
        flip = self._splat(-0x7F7F7F80, words)  # 0x80 in each byte
        moved = self._fours(total, self._write(binary("xor", words, flip)), weights)
        return self._write(binary("sub", moved, self._fours(self._splat(0, total), flip, weights)))

    def _matrix_step(self, function: str, total: Value, row: Value, columns: Value) -> Value:
        """Eight bytes of one row by those of several columns; which rows go together, the scheduler finds."""
        self.arithmetic.writer.declare(matrix_products.declaration(function))
        operands = (total, row, columns)
        return self._write(Instruction(matrix_products.STEP, "int32", total.lanes, operands, function))

    def _by_pairs_of_words(self, total: Value, words: Value, weights: Value) -> Value:
        """Of the even bytes, then of the odd ones: pairs of 16-bit numbers, none of whose sums overflow."""
        lanes = total.lanes
        low = self._write(binary("and", words, self._splat(0x00FF00FF, words)))
        high = self._as(words, "int16", 2 * lanes)
        high = self._write(binary("lshr", high, self._splat(8, high)))
        known = self._as(weights, "int16", 2 * lanes)
        eight = self._splat(8, known)
        even = self._write(binary("ashr", self._write(binary("shl", known, eight)), eight))
        odd = self._write(binary("ashr", known, eight))
        for left, right in ((low, even), (high, odd)):
            total = self._added_pairs(total, self._as(left, "int16", 2 * lanes), right)
        return total

    def _by_sums_of_bytes(self, total: Value, words: Value, weights: Value) -> Value:
        """Of weights within +-64: the sums of two products fit 16 bits, and ones add up pairs of them."""
        bytes_ = [self._as(value, "int8", 4 * total.lanes) for value in (words, weights)]
        sums = Value("", "int16", 2 * total.lanes)
        sums = self._called(f"x86.{_MULTIPLY_ADD_BYTES[total.lanes]}", sums, *bytes_)
        return self._added_pairs(total, sums, self._splat(1, sums))

    def _added_pairs(self, total: Value, left: Value, right: Value) -> Value:
        """total + the products of 16-bit numbers, in pairs."""
        products = self._called(f"x86.{_MULTIPLY_ADD_PAIRS[total.lanes]}", total, left, right)
        return self._write(binary("add", total, products))

    def _pairs(self, function: str, total: Value, words: Value, weights: Value) -> Value:
        """Pairs of bytes with signs; on aarch64 the scheduler writes the instructions of full vectors."""
        lanes = total.lanes
        if lanes == byte_products.LANES and self.target.triple.startswith("aarch64"):
            for declaration in byte_products.DECLARATIONS:
                self.arithmetic.writer.declare(declaration)
            operands = (total, words, weights)
            return self._write(Instruction(byte_products.STEP, "int32", lanes, operands, function))
        return self._one_by_one(function, total, words, weights)

    def _one_by_one(self, function: str, total: Value, words: Value, weights: Value) -> Value:
        """Bytes widened to 32 bits, their products, and as many additions."""
        lanes, count = total.lanes, DOT_BYTES[function]
        wide = [
            self._write(conversion(extended, self._as(value, "int8", count * lanes), "int32"))
            for extended, value in (
                ("zext" if function in UNSIGNED_DATA else "sext", words),
                ("sext", weights),
            )
        ]
        products = self._write(binary("mul", *wide))
        for first in range(count):
            part = (
                self.arithmetic.writer.extract(products, first)
                if lanes == 1
                else self._write(shuffle(products, tuple(range(first, products.lanes, count))))
            )
            total = self._write(binary("add", total, part))
        return total

    def _called(self, name: str, result: Value, *operands: Value) -> Value:
        writer, function = self.arithmetic.writer, f"llvm.{name}"
        writer.declare(f"{result.type} @{function}({', '.join(value.type for value in operands)})")
        return writer.value(call(function, result.dtype, result.lanes, operands))

    def _as(self, value: Value, dtype: str, lanes: int) -> Value:
        """The same bits as other lanes."""
        return self._write(Instruction("bitcast", dtype, lanes, (value,)))

    def _splat(self, number: int, like: Value) -> Value:
        return self.arithmetic.writer.splat(literal(number, like.dtype), like.lanes)

    def _write(self, instruction: Instruction) -> Value:
        return self.arithmetic.writer.value(instruction)


def _narrowed(expr: Expr) -> str:
    """The dtype of which an int32 is made."""
    return expr.value.dtype if isinstance(expr, Cast) and expr.dtype == "int32" else "int32"
