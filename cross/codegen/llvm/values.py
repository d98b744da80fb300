"""Expressions of a bound loop nest as LLVM values.

`Values.evaluate(expr)` gives a scalar or a vector, depending on whether the expression uses the variable of
the vectorized loop that is being written. A variable is one of three things (`Environment`): a known integer
(an unrolled iteration), an SSA value (a loop that runs), or lanes start, start + 1, ... (a chunk of the
vectorized loop). Three layers, each in a file: integers.py, memory.py, and all else here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from boards.target import Target
from cross.codegen.buffers import rounds
from cross.codegen.instructions import Value, binary, comparison, conversion, literal, selection
from cross.codegen.llvm.dot_products import DotProducts
from cross.codegen.llvm.functions import Functions
from cross.codegen.llvm.integers import scalar_variables
from cross.codegen.llvm.lookup import add_multiple, known_element, known_factor, load_element
from cross.codegen.llvm.memory import Memory
from cross.codegen.llvm.objects import fuses
from cross.codegen.llvm.packed_bytes import WITHIN, PackedBytes
from cross.codegen.llvm.rounded_bytes import RoundedByte, dequantized, reciprocal, rounded_byte, rounder
from cross.codegen.llvm.sharing import Sharing
from cross.codegen.llvm.sums_of_bytes import factors, sum_of_bytes
from cross.codegen.llvm.writer import Writer
from cross.errors import CompileError
from cross.expression.language.dtypes import DTYPES, FLOATS
from cross.expression.language.operations import BYTE_PRODUCTS, OPERATIONS
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Lookup, Select, call
from cross.loopnest.affine import substitute
from cross.loopnest.nodes import Expr, Load, Scope, Var


class Values(Memory):
    """Evaluates expressions at the current place of a writer."""

    def __init__(self, writer: Writer, pointers: Mapping[str, Value], target: Target) -> None:
        super().__init__(writer, pointers, target.masks_lanes)
        self.functions = Functions(self.arithmetic)
        arm = target.triple.startswith("aarch64")
        self.arithmetic.saturates = self.arithmetic.has_extremes = self.arithmetic.overwrites_addends = arm
        self.arithmetic.has_wide_registers = target.masks_lanes
        self.arithmetic.estimates_quotients = target.vectors_per_cycle >= 2.0
        self.dot_products = DotProducts(self.arithmetic, target)
        self.packed_bytes = PackedBytes(self.arithmetic, target)
        self.fuses = self.arithmetic.saturates or fuses(target)
        self.rounded = False
        """Whether the result is rounded to integers: a fused multiply-add would choose other ones."""
        self.sharing = Sharing()

    def of_statement(self, expr: Expr) -> Value:
        """The value here of an expression that a statement holds."""
        return self.evaluate(self.sharing.begin(expr))

    def evaluate(self, expr: Expr) -> Value:
        """The value of an expression here. A part that an expression has several times is evaluated once, and
        again only under guards that the known value does not have: it was read where these hold, too."""
        if not self.sharing.is_repeated(expr):
            return self.written(expr)
        environment, guards = self.environment, frozenset(self.guards)
        place = (id(expr), environment.vector, environment.used, self.rounded, *environment.integers.values())
        known = self.sharing.values.get(place)
        if known is None or not known[0] <= guards:
            known = self.sharing.values[place] = guards, self.written(expr)
        return known[1]

    def written(self, expr: Expr) -> Value:
        """The value of an expression, evaluated here."""
        match expr:
            case Int() | Var():
                return self.integer_or_lanes(expr)
            case Const(value, dtype):
                return literal(value, dtype)
            case Load():
                return self.load(expr)
            case Lookup():
                return self.lookup(expr)
            case Binary():
                return self.binary(expr)
            case Call():
                return self.call(expr)
            case Select(condition, then, otherwise):
                return self.select(self.evaluate(condition), then, otherwise)
            case Cast(dtype, value):
                rounded = self.rounded_byte(expr)
                return self.arithmetic.cast(dtype, self.evaluate(value)) if rounded is None else rounded
            case _:
                raise CompileError(f"the nest is not bound: {expr} is left")

    def call(self, expr: Call) -> Value:
        """A function: as functions.py has it for vectors, or as its row of OPERATIONS says."""
        row, kind = OPERATIONS[expr.function], DTYPES[expr.arguments[0].dtype].kind
        written = self.functions.table.get(expr.function) if expr.dtype == "float32" else None
        if written is None and kind not in row.llvm and row.expansion is not None:
            return self.evaluate(row.expansion(call, *expr.arguments))
        outside, self.rounded = self.rounded, self.rounded or rounds(expr)
        operands, _ = self.arithmetic.together(*map(self.evaluate, expr.arguments))
        self.rounded = outside
        if expr.function in BYTE_PRODUCTS:
            summed = self.dot_products.add(expr.function, literal(0, "int32"), *operands)
            if summed is not None:
                return summed
        return self.arithmetic.apply(expr.function, operands) if written is None else written(operands[0])

    def rounded_byte(self, expr: Cast) -> Value | None:
        """A byte of a rounded float32, or such a byte as a float32 again; None for any other conversion.

        Where conversions saturate they are as short as this, unless a division goes with it.
        """
        byte, again = rounded_byte(expr), dequantized(expr)
        found = byte or (again[0] if again is not None else None)
        if self.arithmetic.saturates and (found is None or not _is_quotient(found)):
            return None
        if byte is not None:
            addend, left = rounder(byte.zero)
            number = self.clamped(byte)
            total = self.writer.value(binary("fadd", number, self._splat(addend, number)))
            bits = self.writer.value(conversion("bitcast", total, "int32"))
            if left:
                bits = self.writer.value(binary("add", bits, self._splat(left, bits)))
            return self.writer.value(conversion("trunc", bits, byte.dtype))
        if again is None:
            return None
        byte, added = again
        number = self.arithmetic.apply("round", [self.clamped(byte)])
        if byte.zero + added == 0:
            return number
        return self.writer.value(binary("fadd", number, self._splat(float(byte.zero + added), number)))

    def rounded_integers(self, byte: RoundedByte) -> Value:
        """round(number) as int32, or what lies beyond the same end of the byte's range as it does; a NaN is
        what becomes 0. In all lanes here, as many as `PackedBytes` has."""
        value = self.sum_of_bytes(byte)
        if value is None and self._dividend(byte) is not None:
            value = self.clamped(byte)
        if value is not None:
            return self.packed_bytes.rounded(self.writer.splat(value, self.lanes))
        number = self.writer.splat(self.rounded_value(byte.number), self.lanes)
        value = self.arithmetic.extreme("min", number, self._splat(WITHIN, number))
        found = self.packed_bytes.rounded(value)
        if byte.dtype == "uint8":  # of which 0 is the end where the least int32 is, too
            return found
        exists = self.writer.value(comparison("fcmp ord", number, number))
        return self.writer.value(selection(exists, found, self._splat(-byte.zero, found)))

    def rounded_value(self, number: Expr) -> Value:
        """The value of an expression that is about to be rounded."""
        outside, self.rounded = self.rounded, True
        value = self.evaluate(number)
        self.rounded = outside
        return value

    def _dividend(self, byte: RoundedByte) -> tuple[Expr, float, tuple[float, float]] | None:
        """What is rounded as dividend and divisor, and the factors that stand for the division."""
        match byte.number:
            case Binary("/", dividend, Const(divisor, "float32")) if self.fuses:
                factors = reciprocal(divisor, *byte.ends)
                return None if factors is None else (dividend, divisor, factors)
        return None

    def clamped(self, byte: RoundedByte) -> Value:
        """A float32 that becomes a byte, within the range of the byte; a NaN is what becomes 0."""
        low, high = byte.ends
        value = self.sum_of_bytes(byte)
        if value is not None:
            return self.arithmetic.clamped(value, float(low), float(high), float(low))
        number, scale, factors = self._dividend(byte) or (byte.number, 1.0, None)
        value = self.rounded_value(number)
        least, most, zero = (float(np.float32(end * scale)) for end in (low, high, -byte.zero))
        value = self.arithmetic.clamped(value, least, most, zero)
        if factors is None:
            return value
        first, second = (self._splat(factor, value) for factor in factors)
        rest = self.writer.value(binary("fmul", value, second))
        return self.arithmetic.intrinsic("llvm.fma", [value, first, rest])

    def sum_of_bytes(self, byte: RoundedByte) -> Value | None:
        """What rounds to a byte as a sum of two scaled ones does, without dividing; None for all else."""
        total = sum_of_bytes(byte.number) if self.fuses else None
        if total is None:
            return None
        both = (total.left, total.right)
        inner = [rounded_byte(item.byte) for item in both]
        integers = [item.integers(rounded) for item, rounded in zip(both, inner, strict=True)]
        found = factors(integers[0], integers[1], total.divisor, *byte.ends)
        if found is None:
            return None
        left, right = (
            self.evaluate(Cast("float32", item.byte))
            if rounded is None
            else self.arithmetic.apply("round", [self.clamped(rounded)])
            for item, rounded in zip(both, inner, strict=True)
        )
        first, second, constant = (self._splat(number, left) for number in found)
        rest = self.arithmetic.intrinsic("llvm.fma", [right, second, constant])
        return self.arithmetic.intrinsic("llvm.fma", [left, first, rest])

    def _splat(self, number: float, like: Value) -> Value:
        return self.writer.splat(literal(number, like.dtype), like.lanes)

    def lookup(self, expr: Lookup) -> Value:
        """An element of a matrix of literals, one per lane where the vector variable chooses it."""
        element = known_element(expr, self.environment.integers)
        if element is not None:
            return literal(element, expr.dtype)
        vector = self.environment.vector
        if vector is None or vector[0] not in self.variables(expr.row) | self.variables(expr.column):
            row, column = self.integer(expr.row), self.integer(expr.column)
            return load_element(self.arithmetic, expr, row, column)
        name, first, lanes = vector
        found = []
        for lane in self.places(first, lanes):
            here: dict[Expr, Expr] = {Var(name): Int(lane)}
            place = substitute(expr.row, here), substitute(expr.column, here)
            found.append(self.lookup(Lookup(expr.matrix, *place, expr.dtype)))
        return self.writer.join(found)

    def binary(self, expr: Binary) -> Value:
        if expr.op == "+" and isinstance(expr.right, Binary) and expr.right.op == "*":
            fused = self.multiply_add(expr.left, expr.right)
            if fused is not None:
                return fused
        if expr.op == "+" and isinstance(expr.right, Call) and expr.right.function in BYTE_PRODUCTS:
            parts = map(self.evaluate, (expr.left, *expr.right.arguments))
            summed = self.dot_products.add(expr.right.function, *parts)
            if summed is not None:
                return summed
        if expr.op == "*" and (product := self.times_sigmoid(expr)) is not None:
            return product
        alike = self.decided(expr) or self.compared(expr) or self.uniform_comparison(expr)
        if alike is not None:
            return alike
        left, right = self.evaluate(expr.left), self.evaluate(expr.right)
        if expr.op in ("and", "or") and (settled := _settled(expr.op, left, right)) is not None:
            return settled
        if left.dtype == right.dtype == "int64" and left.lanes == right.lanes == 1 and not self.reads(expr):
            # Index arithmetic belongs as far out as its variables allow.
            names = scalar_variables(expr)
            if names is not None and not names & self.environment.integers.keys():
                depth = max((self.running(name)[1] for name in names), default=0)
                return self.arithmetic.apply(expr.op, [left, right], depth)
        operands, _ = self.arithmetic.together(left, right)
        if expr.op in ("min", "max") and left.dtype in FLOATS:
            known = isinstance(expr.right, Const)
            return (self.arithmetic.extreme if known else self.arithmetic.extreme_of)(expr.op, *operands)
        return self.arithmetic.apply(expr.op, operands)

    def times_sigmoid(self, product: Binary) -> Value | None:
        """A product of float32 with a sigmoid that the expression has once; None for any other."""
        for factor, other in ((product.left, product.right), (product.right, product.left)):
            match other:
                case Call("sigmoid", (x,), dtype="float32") if not self.sharing.is_repeated(other):
                    return self.functions.times_sigmoid(
                        *self.arithmetic.together(self.evaluate(factor), self.evaluate(x))[0]
                    )
        return None

    def multiply_add(self, addend: Expr, multiplied: Binary) -> Value | None:
        factor = known_factor(multiplied, self.environment.integers)
        if factor is not None:
            start = self.evaluate(addend)
            if factor[0] == 0:
                return start
            return add_multiple(self.arithmetic, start, factor[0], self.evaluate(factor[1]))
        if multiplied.dtype not in FLOATS:
            return self.dot_products.add_one(multiplied.left, multiplied.right, addend, self.evaluate)
        left, right = self.evaluate(multiplied.left), self.evaluate(multiplied.right)
        if _is_zero(left) or _is_zero(right):  # a tap that lies in the padding for certain
            return self.evaluate(addend)
        if self.rounded:
            return None
        (a, b, c), _ = self.arithmetic.together(left, right, self.evaluate(addend))
        return self.arithmetic.multiply_add(a, b, c)

    def select(self, condition: Value, then: Expr, otherwise: Expr) -> Value:
        if condition.text in ("true", "false"):
            return self.evaluate(then if condition.text == "true" else otherwise)
        # only what reads memory heeds guards
        in_memory = isinstance(then, Load) and then.buffer.scope is not Scope.REGISTER
        if in_memory and otherwise == Const(0.0, then.dtype):
            self.guards.append(condition)
            loaded = self.written(then)
            self.guards.pop()
            if condition.lanes in (1, loaded.lanes):
                return loaded  # a guarded load is zero where the guard does not hold
        branches = []
        for branch, guard in ((then, condition), (otherwise, None)):
            if not self.reads(branch):
                branches.append(self.evaluate(branch))
                continue
            self.guards.append(self.arithmetic.negated(condition) if guard is None else guard)
            branches.append(self.evaluate(branch))
            self.guards.pop()
        lanes = max(branch.lanes for branch in branches)
        lanes = max(lanes, condition.lanes)
        first, second = (self.writer.splat(branch, lanes) for branch in branches)
        if condition.lanes not in (1, lanes):
            raise CompileError("a condition and its branches differ in lanes")
        return self.writer.value(selection(condition, first, second))


def _settled(op: str, left: Value, right: Value) -> Value | None:
    """left and right, or left or right, where one of them is known."""
    for one, other in ((left, right), (right, left)):
        if one.text in ("true", "false"):
            return other if (one.text == "true") == (op == "and") else one
    return None


def _is_quotient(byte: RoundedByte) -> bool:
    """Whether a constant divides what is rounded."""
    match byte.number:
        case Binary("/", _, Const()):
            return True
    return False


def _is_zero(value: Value) -> bool:
    return not value.is_name and value.text == literal(0.0, value.dtype).text
