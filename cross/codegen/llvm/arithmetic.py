"""Arithmetic on LLVM values: operators, conversions and elementwise functions, scalar or vector.

Nothing here knows about loops or memory; values.py evaluates the operands.
"""

from __future__ import annotations

from cross.codegen.instructions import (
    FLOATS,
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
    selection,
)
from cross.codegen.llvm.writer import Writer
from cross.errors import CompileError
from cross.expression.language.terms import ITEM_BYTES

UNSIGNED = ("bool", "uint8")


class Arithmetic:
    """Writes instructions at the current place of a writer."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def integer_binary(self, op: str, left: Value, right: Value, depth: int | None) -> Value:
        if op in ("+", "-", "*"):
            name = {"+": "add", "-": "sub", "*": "mul"}[op]
            return self.writer.value(binary(name, left, right), depth=depth)
        sign = "u" if left.dtype in UNSIGNED else "s"
        if op in ("<", "<=", "=="):
            predicate = {"<": f"{sign}lt", "<=": f"{sign}le", "==": "eq"}[op]
            return self.writer.value(comparison(f"icmp {predicate}", left, right), depth=depth)
        if op in ("min", "max"):
            function = f"llvm.{sign}{op}.{intrinsic_suffix(left.dtype, left.lanes)}"
            return self.called(function, [left, right], depth)
        if op in ("//", "%") and sign == "u":
            return self.writer.value(binary("udiv" if op == "//" else "urem", left, right), depth=depth)
        if op in ("//", "%"):
            return self.floor_division(op, left, right, depth)
        raise CompileError(f"no integer operator {op}")

    def called(self, function: str, operands: list[Value], depth: int | None = None) -> Value:
        """The result of a function of values of one type, which it has, too."""
        first = operands[0]
        self.writer.declare(f"{first.type} @{function}({', '.join(value.type for value in operands)})")
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

    def float_binary(self, op: str, left: Value, right: Value, right_is_literal: bool) -> Value:
        if op in ("+", "-", "*", "/"):
            name = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}[op]
            return self.writer.value(binary(name, left, right))
        if op in ("<", "<=", "=="):
            predicate = {"<": "olt", "<=": "ole", "==": "oeq"}[op]
            return self.writer.value(comparison(f"fcmp {predicate}", left, right))
        if op not in ("min", "max"):
            raise CompileError(f"no float operator {op}")
        if right_is_literal:
            # One instruction, and a NaN on the left stays one: the comparison with it is false.
            predicate = "ogt" if op == "max" else "olt"
            flags = self.writer.value(comparison(f"fcmp {predicate}", right, left))
            return self.writer.value(selection(flags, right, left))
        return self.called(f"llvm.{op}imum.{intrinsic_suffix(left.dtype, left.lanes)}", [left, right])

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c."""
        return self.called(MULTIPLY_ADD + intrinsic_suffix(a.dtype, a.lanes), [a, b, c])

    def negated(self, condition: Value) -> Value:
        ones = self.writer.splat(literal(True, "bool"), condition.lanes)
        return self.writer.value(binary("xor", condition, ones))

    def cast(self, dtype: str, value: Value) -> Value:
        if value.dtype == dtype:
            return value
        return self.writer.value(conversion(_conversion(value.dtype, dtype), value, dtype))

    def call(self, function: str, arguments: list[Value]) -> Value:
        arguments, lanes = self.together(*arguments)
        first = arguments[0]
        if function == "not":
            return self.negated(first)
        if function == "neg":
            if first.dtype in FLOATS:
                return self.writer.value(Instruction("fneg", first.dtype, lanes, (first,)))
            zero = Value("zeroinitializer" if lanes > 1 else "0", first.dtype, lanes)
            return self.writer.value(binary("sub", zero, first))
        if function == "sigmoid":
            return self.sigmoid(first)
        if function == "erf":
            return self.library("erff" if first.dtype == "float32" else "erf", arguments, lanes)
        return self.intrinsic({"abs": "fabs"}.get(function, function), arguments)

    def sigmoid(self, value: Value) -> Value:
        """1 / (1 + exp(-x))."""
        one = self.writer.splat(literal(1.0, value.dtype), value.lanes)
        grown = self.call("exp", [self.call("neg", [value])])
        return self.float_binary("/", one, self.float_binary("+", one, grown, False), False)

    def intrinsic(self, name: str, arguments: list[Value]) -> Value:
        first = arguments[0]
        if first.dtype not in FLOATS:
            raise CompileError(f"{name}() works on floats, found {first.dtype}")
        return self.called(f"llvm.{name}.{intrinsic_suffix(first.dtype, first.lanes)}", arguments)

    def library(self, name: str, arguments: list[Value], lanes: int) -> Value:
        """A function of the C library, which knows scalars only."""
        kind = TYPES[arguments[0].dtype]
        self.writer.declare(f"{kind} @{name}({', '.join(kind for _ in arguments)})")
        results = []
        for lane in range(lanes):
            scalars = [self.writer.extract(value, lane) for value in arguments]
            results.append(self.writer.value(call(name, arguments[0].dtype, 1, scalars)))
        return results[0] if lanes == 1 else self.writer.join(results)


def _conversion(source: str, dtype: str) -> str:
    sizes = {"float16": 2, "float32": 4, "float64": 8}
    if source in FLOATS and dtype in FLOATS:
        return "fpext" if sizes[dtype] > sizes[source] else "fptrunc"
    if source in FLOATS:
        return "fptoui" if dtype in UNSIGNED else "fptosi"
    unsigned = source in UNSIGNED
    if dtype in FLOATS:
        return "uitofp" if unsigned else "sitofp"
    if ITEM_BYTES[dtype] > ITEM_BYTES[source] or source == "bool":
        return "zext" if unsigned else "sext"
    return "bitcast" if ITEM_BYTES[dtype] == ITEM_BYTES[source] and dtype != "bool" else "trunc"
