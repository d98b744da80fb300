"""Arithmetic on LLVM values, scalar or vector: the operations of the grammar as their rows say, conversions.

Nothing here knows about loops or memory; values.py evaluates the operands.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from cross.codegen.instructions import (
    MULTIPLY_ADD,
    TYPES,
    Instruction,
    Value,
    binary,
    call,
    comparison,
    conversion,
    intrinsic_suffix,
    literal,
    poison,
    selection,
    vector_type,
)
from cross.codegen.llvm.writer import Writer
from cross.errors import CompileError
from cross.expression.language.dtypes import DTYPES, FLOATS
from cross.expression.language.operations import OPERATIONS

WHOLE_LANES = 16  # of a register of AVX-512
ESTIMATE = "llvm.x86.avx512.rcp14.ps.512"  # of the reciprocals of a whole register


class Arithmetic:
    """Writes instructions at the current place of a writer."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.saturates = False  # whether the target converts floats to the nearest integer in range
        self.has_extremes = False  # whether it has llvm.maximum and llvm.minimum of float32 and float64
        self.overwrites_addends = False  # whether a multiply-add does: a constant is then copied first
        self.has_wide_registers = False  # whether those of AVX-512 are there, with its lookups
        self.estimates_quotients = False  # whether the estimates of AVX-512 are faster than divisions

    def apply(self, name: str, operands: list[Value], depth: int | None = None) -> Value:
        """The value of an operation on values of one type.

        Raises:
            CompileError: its row has no text for their dtype.
        """
        row, first = OPERATIONS[name], operands[0]
        kind = DTYPES[first.dtype].kind
        if name in ("//", "%") and kind == "signed":
            return self.floor_division(name, operands[0], operands[1], depth)
        if name == "not":
            return self.negated(first)
        if kind not in row.llvm:
            raise CompileError(f"{name} of {first.dtype} is not written in LLVM IR")
        text = row.llvm[kind]
        if text.startswith("llvm."):
            return self.intrinsic(text, operands, depth)
        if text.startswith("@"):
            return self.library(text[1:] + ("f" if first.dtype == "float32" else ""), operands)
        instruction = Instruction(text, row.result or first.dtype, first.lanes, tuple(operands))
        return self.writer.value(instruction, depth=depth)

    def intrinsic(self, name: str, operands: list[Value], depth: int | None = None) -> Value:
        """The result of an intrinsic on values of one type, which it has, too."""
        first = operands[0]
        function, declaration = _intrinsic(name, first.dtype, first.lanes, len(operands))
        self.writer.declarations.add(declaration)
        return self.writer.value(call(function, first.dtype, first.lanes, operands), depth=depth)

    def floor_division(self, op: str, left: Value, right: Value, depth: int | None) -> Value:
        """Quotient towards minus infinity, and the remainder with the sign of the divisor."""

        def write(instruction: Instruction) -> Value:
            return self.writer.value(instruction, depth=depth)

        zero, one = (self.writer.splat(literal(value, left.dtype), left.lanes) for value in (0, 1))
        rest = write(binary("srem", left, right))
        signs = write(binary("xor", rest, right))
        negative = write(comparison("icmp slt", signs, zero))
        uneven = write(comparison("icmp ne", rest, zero))
        wrong = write(binary("and", negative, uneven))
        if op == "%":
            return write(selection(wrong, write(binary("add", rest, right)), rest))
        quotient = write(binary("sdiv", left, right))
        return write(selection(wrong, write(binary("sub", quotient, one)), quotient))

    def together(self, *values: Value) -> tuple[list[Value], int]:
        """The values with equal lanes: scalars are repeated where another is a vector."""
        lanes = max(value.lanes for value in values)
        return [self.writer.splat(value, lanes) for value in values], lanes

    def extreme(self, op: str, value: Value, bound: Value) -> Value:
        """The minimum or maximum of floats with a `bound` that is no NaN; a NaN in `value` stays one, as a
        comparison with it is false."""
        if self.has_extremes and value.dtype != "float16":
            return self.apply(op, [value, bound])
        flags = self.writer.value(comparison(f"fcmp {'ogt' if op == 'max' else 'olt'}", bound, value))
        return self.writer.value(selection(flags, bound, value))

    def extreme_of(self, op: str, left: Value, right: Value) -> Value:
        """The minimum or maximum of two floats; a NaN on either side is the result, of 0 and -0 either one.

        LLVM's intrinsics, which put -0 below 0, are five instructions on a target without ones for them;
        these are three, of which one does not wait for `left`, where the accumulator of a reduction is.
        """
        if self.has_extremes:
            return self.apply(op, [left, right])
        found = self.extreme(op, left, right)  # `left` where one of them is a NaN
        return self.writer.value(
            selection(self.writer.value(comparison("fcmp uno", right, right)), right, found)
        )

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c."""
        return self.intrinsic(MULTIPLY_ADD, [a, b, c])

    def negative(self, value: Value) -> Value:
        """-value."""
        return self.writer.value(Instruction("fneg", value.dtype, value.lanes, (value,)))

    def quotient(self, dividend: Value, divisor: Value) -> Value:
        """dividend / divisor of float32, for a divisor from 2^-126 to 2^126 in size; NaN of a NaN.

        A division of 16 lanes takes 16 cycles on Intel's cores, and 6 on a Zen 4, which multiplies one such
        vector in a cycle. An estimate of the reciprocal and a step of Newton's method are six operations: the
        error of 2^-14 becomes 2^-28, below the rounding.
        """
        if not self.is_estimated(divisor):
            return self.apply("/", [dividend, divisor])
        operands = (divisor, poison(divisor.dtype, divisor.lanes), Value("-1", "int16"))
        self.writer.declare(f"{divisor.type} @{ESTIMATE}({', '.join(item.type for item in operands)})")
        estimate = self.writer.value(call(ESTIMATE, divisor.dtype, divisor.lanes, operands))
        first = self.apply("*", [dividend, estimate])
        rest = self.multiply_add(self.negative(divisor), first, dividend)
        return self.multiply_add(rest, estimate, first)

    def is_estimated(self, divisor: Value) -> bool:
        """Whether `quotient` is not a division."""
        return self.estimates_quotients and self.is_whole(divisor)

    def is_whole(self, value: Value) -> bool:
        """Whether floats fill a register of AVX-512."""
        return self.has_wide_registers and value.lanes == WHOLE_LANES

    def array(self, literals: Sequence[Value]) -> Value:
        """A pointer to a constant array, aligned to 64 bytes, which equal ones share."""
        kind = TYPES[literals[0].dtype]
        listed = ", ".join(f"{kind} {item.text}" for item in literals)
        array = Value(f"@tfb.matrix.{hashlib.sha256(listed.encode()).hexdigest()[:16]}", "pointer")
        contents = f"internal constant [{len(literals)} x {kind}] [{listed}], align 64"
        self.writer.declarations.add(f"{array.text} = {contents}")
        return array

    def negated(self, condition: Value) -> Value:
        ones = self.writer.splat(literal(True, "bool"), condition.lanes)
        return self.writer.value(binary("xor", condition, ones))

    def cast(self, dtype: str, value: Value) -> Value:
        """The value converted as a `Cast` says (expression/language/terms.py)."""
        if value.dtype == dtype:
            return value
        if value.dtype == "bfloat16":
            return self.cast(dtype, self.widened(value))
        if dtype == "bfloat16":
            return self.narrowed(self.cast("float32", value))
        if dtype == "bool":
            zero = self.writer.splat(literal(0, value.dtype), value.lanes)
            return self.writer.value(
                comparison("fcmp une" if value.dtype in FLOATS else "icmp ne", value, zero)
            )
        if TYPES[dtype] == TYPES[value.dtype]:
            return value._replace(dtype=dtype)
        if value.dtype in FLOATS and dtype not in FLOATS:
            return self.truncated(dtype, value)
        return self.writer.value(conversion(_conversion(value.dtype, dtype), value, dtype))

    def widened(self, value: Value) -> Value:
        """A bfloat16 as float32, of which it is the upper half."""
        bits = self.writer.value(conversion("zext", value, "uint32"))
        shift = self.writer.splat(literal(16, "uint32"), value.lanes)
        return self.writer.value(
            conversion("bitcast", self.writer.value(binary("shl", bits, shift)), "float32")
        )

    def narrowed(self, value: Value) -> Value:
        """A float32 rounded to bfloat16, halves to even; LLVM's own instruction would call a library."""

        def constant(number: int) -> Value:
            return self.writer.splat(literal(number, "uint32"), value.lanes)

        def write(op: str, left: Value, right: Value) -> Value:
            return self.writer.value(binary(op, left, right))

        bits = self.writer.value(conversion("bitcast", value, "uint32"))
        lowest = write("and", write("lshr", bits, constant(16)), constant(1))
        rounded = write("add", write("add", bits, lowest), constant(0x7FFF))
        nan = write("or", write("and", bits, constant(0x80000000)), constant(0x7FC00000))
        number = self.writer.value(comparison("fcmp ord", value, value))
        found = write("lshr", self.writer.value(selection(number, rounded, nan)), constant(16))
        return self.writer.value(conversion("trunc", found, "bfloat16"))

    def truncated(self, dtype: str, value: Value) -> Value:
        """Floats as integers. LLVM's instruction says nothing of NaN and of what is out of range."""
        if value.dtype == "float16":  # whose infinities lie within the range of integers
            value = self.cast("float32", value)
        if self.saturates:
            return self.saturated(dtype, value)

        def constant(number: float, of: str) -> Value:
            return self.writer.splat(literal(number, of), value.lanes)

        def chosen(op: str, other: Value, then: Value, otherwise: Value) -> Value:
            return self.writer.value(
                selection(self.writer.value(comparison(op, value, other)), then, otherwise)
            )

        limits, real = np.iinfo(dtype), np.dtype(value.dtype).type
        end = real(limits.max)  # rounded up where the float has not as many digits
        last = end if int(end) == limits.max else np.nextafter(end, real(0))
        number = self.clamped(value, float(limits.min), float(last), 0.0)
        op = "fptosi" if DTYPES[dtype].kind == "signed" else "fptoui"
        result = self.writer.value(conversion(op, number, dtype))
        if last == end:
            return result
        return chosen("fcmp oge", constant(float(end), value.dtype), constant(limits.max, dtype), result)

    def clamped(self, value: Value, least: float, most: float, nan: float) -> Value:
        """A float within [least, most], which are finite; a NaN is `nan`."""
        low, high, other = (
            self.writer.splat(literal(number, value.dtype), value.lanes) for number in (least, most, nan)
        )
        if least == nan:  # no comparison with a NaN holds
            above = self.writer.value(comparison("fcmp ogt", value, low))
            return self.extreme("min", self.writer.value(selection(above, value, low)), high)
        clamped = self.extreme("min", self.extreme("max", value, low), high)
        number = self.writer.value(comparison("fcmp ord", value, value))
        return self.writer.value(selection(number, clamped, other))

    def saturated(self, dtype: str, value: Value) -> Value:
        """`truncated` by LLVM's own saturating conversion, which x86-64 does element by element."""
        result = Value("", dtype, value.lanes)
        signed = "s" if DTYPES[dtype].kind == "signed" else "u"
        suffixes = (intrinsic_suffix(item.dtype, item.lanes) for item in (result, value))
        function = ".".join((f"llvm.fpto{signed}i.sat", *suffixes))
        self.writer.declare(f"{result.type} @{function}({value.type})")
        return self.writer.value(call(function, dtype, value.lanes, [value]))

    def library(self, name: str, arguments: list[Value]) -> Value:
        """A function of the C library, which knows scalars only."""
        first = arguments[0]
        self.writer.declare(
            f"{TYPES[first.dtype]} @{name}({', '.join(TYPES[item.dtype] for item in arguments)})"
        )
        results = []
        for lane in range(first.lanes):
            scalars = [self.writer.extract(value, lane) for value in arguments]
            results.append(self.writer.value(call(name, first.dtype, 1, scalars)))
        return results[0] if first.lanes == 1 else self.writer.join(results)


@functools.lru_cache(maxsize=1024)
def _intrinsic(name: str, dtype: str, lanes: int, operands: int) -> tuple[str, str]:
    """The function behind an intrinsic on so many values of one type, and its declaration."""
    function, kind = f"{name}.{intrinsic_suffix(dtype, lanes)}", vector_type(dtype, lanes)
    return function, f"declare {kind} @{function}({', '.join([kind] * operands)})"


def _conversion(source: str, dtype: str) -> str:
    """LLVM's instruction for a conversion between dtypes, but from a float to an integer."""
    one, other = DTYPES[source], DTYPES[dtype]
    if one.kind == "float":
        return "fpext" if other.item_bytes > one.item_bytes else "fptrunc"
    if other.kind == "float":
        return "sitofp" if one.kind == "signed" else "uitofp"
    if other.item_bytes > one.item_bytes or one.kind == "bool":
        return "sext" if one.kind == "signed" else "zext"
    return "trunc"
