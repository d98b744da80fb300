"""Arithmetic on LLVM values: operators, conversions and elementwise functions, scalar or vector.

Nothing here knows about loops or memory; llvm_values.py evaluates the operands.
"""

from __future__ import annotations

from cross.codegen.llvm_text import ELEMENT_TYPES, FLOATS, Value, Writer, literal, vector_type
from cross.errors import CompileError
from cross.expression.terms import ITEM_BYTES

SUFFIXES = {"float16": "f16", "float32": "f32", "float64": "f64"}


class Arithmetic:
    """Writes instructions at the current place of a writer."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    def integer_binary(self, op: str, left: Value, right: Value, depth: int | None) -> Value:
        kind, lanes = left.type, left.lanes

        def write(instruction: str, dtype: str = left.dtype) -> Value:
            return self.writer.value(instruction, dtype, lanes, depth=depth)

        if op in ("+", "-", "*"):
            name = {"+": "add", "-": "sub", "*": "mul"}[op]
            return write(f"{name} {kind} {left.text}, {right.text}")
        if op in ("<", "<=", "=="):
            predicate = {"<": "slt", "<=": "sle", "==": "eq"}[op]
            return write(f"icmp {predicate} {kind} {left.text}, {right.text}", "bool")
        if op in ("min", "max"):
            suffix = f"{'v' + str(lanes) if lanes > 1 else ''}{ELEMENT_TYPES[left.dtype]}"
            function = f"@llvm.s{op}.{suffix}"
            self.writer.declare(f"{kind} {function}({kind}, {kind})")
            return write(f"call {kind} {function}({kind} {left.text}, {kind} {right.text})")
        if op in ("//", "%"):
            return self.floor_division(op, left, right, depth)
        raise CompileError(f"no integer operator {op}")

    def floor_division(self, op: str, left: Value, right: Value, depth: int | None) -> Value:
        """Quotient towards minus infinity, and the remainder with the sign of the divisor."""
        kind, lanes = left.type, left.lanes
        flags = vector_type("bool", lanes)

        def write(instruction: str, dtype: str = left.dtype) -> Value:
            return self.writer.value(instruction, dtype, lanes, depth=depth)

        def constant(text: str) -> str:
            return text if lanes == 1 else f"splat ({ELEMENT_TYPES[left.dtype]} {text})"

        rest = write(f"srem {kind} {left.text}, {right.text}")
        signs = write(f"xor {kind} {rest.text}, {right.text}")
        negative = write(f"icmp slt {kind} {signs.text}, {constant('0')}", "bool")
        uneven = write(f"icmp ne {kind} {rest.text}, {constant('0')}", "bool")
        wrong = write(f"and {flags} {negative.text}, {uneven.text}", "bool")
        if op == "%":
            shifted = write(f"add {kind} {rest.text}, {right.text}")
            return write(f"select {flags} {wrong.text}, {kind} {shifted.text}, {kind} {rest.text}")
        quotient = write(f"sdiv {kind} {left.text}, {right.text}")
        lower = write(f"sub {kind} {quotient.text}, {constant('1')}")
        return write(f"select {flags} {wrong.text}, {kind} {lower.text}, {kind} {quotient.text}")

    def together(self, *values: Value) -> tuple[list[Value], int]:
        """The values with equal lanes: scalars are repeated where another is a vector."""
        lanes = max(value.lanes for value in values)
        return [self.writer.splat(value, lanes) for value in values], lanes

    def float_binary(self, op: str, left: Value, right: Value, right_is_literal: bool) -> Value:
        kind, lanes = left.type, left.lanes
        if op in ("+", "-", "*", "/"):
            name = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv"}[op]
            return self.writer.value(f"{name} {kind} {left.text}, {right.text}", left.dtype, lanes)
        if op in ("<", "<=", "=="):
            predicate = {"<": "olt", "<=": "ole", "==": "oeq"}[op]
            return self.writer.value(f"fcmp {predicate} {kind} {left.text}, {right.text}", "bool", lanes)
        if op not in ("min", "max"):
            raise CompileError(f"no float operator {op}")
        if right_is_literal:
            # One instruction, and a NaN on the left stays one: the comparison with it is false.
            predicate = "ogt" if op == "max" else "olt"
            flags = self.writer.value(f"fcmp {predicate} {kind} {right.text}, {left.text}", "bool", lanes)
            return self.writer.value(
                f"select {flags.type} {flags.text}, {kind} {right.text}, {kind} {left.text}",
                left.dtype,
                lanes,
            )
        function = f"@llvm.{op}imum.{'v' + str(lanes) if lanes > 1 else ''}{suffix(left.dtype)}"
        self.writer.declare(f"{kind} {function}({kind}, {kind})")
        return self.writer.value(
            f"call {kind} {function}({kind} {left.text}, {kind} {right.text})", left.dtype, lanes
        )

    def negated(self, condition: Value) -> Value:
        ones = "true" if condition.lanes == 1 else "splat (i1 true)"
        return self.writer.value(f"xor {condition.type} {condition.text}, {ones}", "bool", condition.lanes)

    def cast(self, dtype: str, value: Value) -> Value:
        source = value.dtype
        if source == dtype:
            return value
        target = vector_type(dtype, value.lanes)
        name = _conversion(source, dtype)
        return self.writer.value(f"{name} {value.type} {value.text} to {target}", dtype, value.lanes)

    def call(self, function: str, arguments: list[Value]) -> Value:
        arguments, lanes = self.together(*arguments)
        first = arguments[0]
        kind, dtype = first.type, first.dtype
        if function == "not":
            return self.negated(first)
        if function == "neg":
            text = (
                f"fneg {kind} {first.text}"
                if dtype in FLOATS
                else f"sub {kind} zeroinitializer, {first.text}"
            )
            return self.writer.value(
                text if lanes > 1 or dtype in FLOATS else f"sub {kind} 0, {first.text}", dtype, lanes
            )
        if function == "sigmoid":
            return self.sigmoid(first)
        if function == "erf":
            return self.library("erff" if dtype == "float32" else "erf", arguments, lanes)
        return self.intrinsic({"abs": "fabs"}.get(function, function), arguments, lanes)

    def sigmoid(self, value: Value) -> Value:
        """1 / (1 + exp(-x))."""
        one = self.writer.splat(literal(1.0, value.dtype), value.lanes)
        grown = self.call("exp", [self.call("neg", [value])])
        return self.float_binary("/", one, self.float_binary("+", one, grown, False), False)

    def intrinsic(self, name: str, arguments: list[Value], lanes: int) -> Value:
        first = arguments[0]
        if first.dtype not in FLOATS:
            raise CompileError(f"{name}() works on floats, found {first.dtype}")
        function = f"@llvm.{name}.{'v' + str(lanes) if lanes > 1 else ''}{suffix(first.dtype)}"
        kinds = ", ".join(value.type for value in arguments)
        values = ", ".join(f"{value.type} {value.text}" for value in arguments)
        self.writer.declare(f"{first.type} {function}({kinds})")
        return self.writer.value(f"call {first.type} {function}({values})", first.dtype, lanes)

    def library(self, name: str, arguments: list[Value], lanes: int) -> Value:
        """A function of the C library, which knows scalars only."""
        dtype = arguments[0].dtype
        kind = ELEMENT_TYPES[dtype]
        self.writer.declare(f"{kind} @{name}({', '.join(kind for _ in arguments)})")
        results = []
        for lane in range(lanes):
            scalars = [self.writer.extract(value, lane) for value in arguments]
            values = ", ".join(f"{value.type} {value.text}" for value in scalars)
            results.append(self.writer.value(f"call {kind} @{name}({values})", dtype))
        return results[0] if lanes == 1 else self.writer.join(results)


def suffix(dtype: str) -> str:
    """How LLVM's intrinsics name an element type."""
    return SUFFIXES.get(dtype, ELEMENT_TYPES[dtype])


def _conversion(source: str, dtype: str) -> str:
    sizes = {"float16": 2, "float32": 4, "float64": 8}
    if source in FLOATS and dtype in FLOATS:
        return "fpext" if sizes[dtype] > sizes[source] else "fptrunc"
    if source in FLOATS:
        return "fptoui" if dtype in ("bool", "uint8") else "fptosi"
    unsigned = source in ("bool", "uint8")
    if dtype in FLOATS:
        return "uitofp" if unsigned else "sitofp"
    if ITEM_BYTES[dtype] > ITEM_BYTES[source] or source == "bool":
        return "zext" if unsigned else "sext"
    return "trunc"
