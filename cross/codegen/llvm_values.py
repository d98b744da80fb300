"""Expressions of a bound loop nest as LLVM values.

`Values.evaluate(expr)` gives a scalar or a vector, depending on whether the expression uses the variable of
the vectorized loop that is being written. A variable is one of three things (`Environment`): a known integer
(an unrolled iteration), an SSA value (a loop that runs), or lanes start, start + 1, ... (a chunk of the
vectorized loop).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cross.codegen.llvm_arithmetic import Arithmetic, suffix
from cross.codegen.llvm_functions import Functions
from cross.codegen.llvm_lookup import add_multiple, known_element, known_factor, load_element
from cross.codegen.llvm_text import ELEMENT_TYPES, FLOATS, Value, Writer, literal, vector_type
from cross.errors import CompileError
from cross.expression.terms import ITEM_BYTES
from cross.loopnest.affine import Affine, Interval, affine, interval, rejoined, substitute, variables
from cross.loopnest.nodes import (
    ZERO,
    Binary,
    Buffer,
    Call,
    Cast,
    Expr,
    Int,
    Literal,
    Load,
    Lookup,
    Scope,
    Select,
    Var,
    add,
    fold,
    mul,
)

ZEROS = "tfb.zeros"  # zeros that guarded loads read instead of memory they may not touch
ZERO_BYTES = 512


@dataclass(slots=True)
class Environment:
    """What every variable in scope is, and the values of all register buffers."""

    integers: dict[str, int] = field(default_factory=dict)
    running: dict[str, tuple[Value, int]] = field(default_factory=dict)  # SSA value, depth of its block
    vector: tuple[str, int, int] | None = None  # variable, first value, lanes
    used: int = 0  # lanes of the vector that count, the first ones
    ranges: dict[str, Interval] = field(default_factory=dict)  # of the loops that run
    registers: dict[tuple[str, int, int], Value] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)  # of buffers that the function writes


@dataclass(frozen=True, slots=True)
class Place:
    """An address: pointer text, distance in elements between lanes, and alignment in bytes."""

    pointer: str
    stride: int
    alignment: int


class Values:
    """Evaluates expressions at the current place of a writer."""

    def __init__(self, writer: Writer, pointers: Mapping[str, str], masks: bool = False) -> None:
        self.writer = writer
        self.arithmetic = Arithmetic(writer)
        self.functions = Functions(self.arithmetic)
        self.pointers = pointers
        self.loads_parts = masks  # of vectors, at the price of whole ones
        self.environment = Environment()
        self.guards: list[Value] = []
        self._offsets: dict[int, tuple[object, Affine]] = {}
        self._differences: dict[int, tuple[object, Affine]] = {}

    @property
    def lanes(self) -> int:
        return self.environment.vector[2] if self.environment.vector else 1

    def used_lanes(self) -> Value | None:
        """The mask of the lanes in use; None where that is all of them."""
        used, lanes = self.environment.used, self.lanes
        if lanes in (1, used):
            return None
        flags = ", ".join(f"i1 {'true' if lane < used else 'false'}" for lane in range(lanes))
        return Value(f"<{flags}>", "bool", lanes)

    def masks(self) -> list[Value]:
        """Conditions lane by lane under which memory may be touched."""
        used = self.used_lanes()
        return [guard for guard in self.guards if guard.lanes != 1] + ([] if used is None else [used])

    def evaluate(self, expr: Expr) -> Value:
        """The value of an expression here."""
        match expr:
            case Int() | Var():
                return self.integer_or_lanes(expr)
            case Literal(value, dtype):
                return literal(value, dtype)
            case Load():
                return self.load(expr)
            case Lookup():
                return self.lookup(expr)
            case Binary():
                return self.binary(expr)
            case Call(function, arguments):
                return self.call(function, [self.evaluate(argument) for argument in arguments])
            case Select(condition, then, otherwise):
                return self.select(self.evaluate(condition), then, otherwise)
            case Cast(dtype, value, _):
                return self.arithmetic.cast(dtype, self.evaluate(value))
            case _:
                raise CompileError(f"the nest is not bound: {expr} is left")

    def call(self, function: str, arguments: list[Value]) -> Value:
        if arguments[0].dtype == "float32" and function in self.functions.table:
            return self.functions.table[function](arguments[0])
        return self.arithmetic.call(function, arguments)

    # ------------------------------------------------------------------------------------- integers

    def integer_or_lanes(self, expr: Expr) -> Value:
        """An integer expression; with the vector variable in it, one value per lane."""
        vector = self.environment.vector
        if vector is None or vector[0] not in variables(expr):
            return self.integer(expr)
        terms, constant = affine(expr)
        name, first, lanes = vector
        step = terms.pop(Var(name), None)
        if not isinstance(step, Int) or any(name in variables(term) for term in terms):
            return self.lanewise(expr)
        base: Expr = add(constant, Int(step.value * first))
        for term, coefficient in terms.items():
            base = add(base, mul(term, coefficient))
        start = self.writer.splat(self.integer(base), lanes)
        steps = ", ".join(f"i64 {step.value * lane}" for lane in range(lanes))
        return self.writer.value(f"add {start.type} {start.text}, <{steps}>", "int64", lanes)

    def uniform_comparison(self, expr: Binary) -> Value | None:
        """A comparison of indices that comes out alike in every lane, as a scalar; None where it may not.

        left - right = g + c * lane with c = 1 or -1 has one sign over all lanes when g is a multiple of
        the number of lanes (c = 1), or one less than one (c = -1): so it is at the seam of a concatenation
        or the edge of a padding that falls between vectors.
        """
        vector = self.environment.vector
        if vector is None or expr.op not in ("<", "<=") or _scalar_variables(expr) is None:
            return None
        name, first, lanes = vector
        known: dict[Expr, Expr] = {
            Var(other): Int(value) for other, value in self.environment.integers.items()
        }
        terms, constant = affine(substitute(Binary("-", expr.left, expr.right), known))
        step = terms.pop(Var(name), Int(0))
        multiples = [coefficient for coefficient in terms.values() if isinstance(coefficient, Int)]
        if not isinstance(constant, Int) or step not in (Int(1), Int(-1)) or len(multiples) < len(terms):
            return None
        if any(coefficient.value % lanes for coefficient in multiples) or any(
            name in variables(term) for term in terms
        ):
            return None
        start = constant.value + step.value * first - (1 if expr.op == "<=" else 0)
        if start % lanes != (0 if step.value == 1 else lanes - 1):
            return None
        at_first = substitute(expr, {**known, Var(name): Int(first)})
        if isinstance(at_first, Literal):
            return literal(at_first.value, "bool")
        return self.integer(at_first)

    def decided(self, expr: Binary) -> Value | None:
        """A comparison of indices that has one outcome here, whatever the loops that run have come to.

        So the guards of a padding vanish from all but the pixels of a tile that may lie in it.
        """
        form = self.difference(expr)
        if form is None:
            return None
        terms, constant = form
        low = high = constant
        for term, coefficient in terms.items():
            bounds = self.range_of(term)
            if bounds is None:
                return None
            ends = sorted(bound * coefficient for bound in bounds)
            low, high = low + ends[0], high + ends[1]
        least = 0 if expr.op == "<=" else 1  # what right - left is where the comparison holds
        if expr.op == "==":
            return literal(False, "bool") if low > 0 or high < 0 else None
        if low >= least or high < least:
            return literal(low >= least, "bool")
        return None

    def difference(self, expr: Binary) -> tuple[dict[Expr, int], int] | None:
        """right - left of a comparison of indices, with what is known here in the constant."""
        if expr.op not in ("<", "<=", "=="):
            return None
        found = self._differences.get(id(expr))
        if found is None:
            pure = _scalar_variables(expr) is not None
            found = (expr, affine(Binary("-", expr.right, expr.left)) if pure else ({}, expr))
            self._differences[id(expr)] = found
        terms, constant = found[1]
        if not isinstance(constant, Int):
            return None
        integers, total, left = self.environment.integers, constant.value, {}
        for term, coefficient in terms.items():
            if not isinstance(coefficient, Int):
                return None
            if isinstance(term, Var) and term.name in integers:
                total += coefficient.value * integers[term.name]
            else:
                left[term] = coefficient.value
        return left, total

    def compared(self, expr: Binary) -> Value | None:
        """A comparison of scalar indices as one of a sum of loop variables with a constant.

        All pixels of a tile then compare the same sum, each with a constant of its own.
        """
        form, vector = self.difference(expr), self.environment.vector
        if form is None or expr.op == "==" or not form[0]:
            return None
        terms, constant = form
        if vector is not None and any(vector[0] in variables(term) for term in terms):
            return None
        below = next(iter(terms.values())) < 0
        moving: Expr = ZERO
        for term, coefficient in terms.items():
            moving = add(moving, mul(term, Int(-coefficient if below else coefficient)))
        value, least = self.integer(moving), 0 if expr.op == "<=" else 1
        test = (
            f"icmp sle i64 {value.text}, {constant - least}"
            if below
            else f"icmp sge i64 {value.text}, {least - constant}"
        )
        return self.writer.value(test, "bool")

    def range_of(self, term: Expr) -> Interval | None:
        """Inclusive bounds of an integer expression here; None where they cannot be told."""
        environment = self.environment
        if isinstance(term, Var):
            if term.name in environment.integers:
                return environment.integers[term.name], environment.integers[term.name]
            if environment.vector is not None and term.name == environment.vector[0]:
                return environment.vector[1], environment.vector[1] + environment.used - 1
            return environment.ranges.get(term.name)
        known: dict[Expr, Expr] = {Var(name): Int(value) for name, value in environment.integers.items()}
        return interval(substitute(term, known), environment.ranges)

    def lanewise(self, expr: Expr) -> Value:
        """An integer expression that is not affine in the vector variable, lane by lane."""
        vector = self.environment.vector
        assert vector is not None
        name, first, lanes = vector
        return self.writer.join(
            [self.integer(substitute(expr, {Var(name): Int(lane)})) for lane in self.places(first, lanes)]
        )

    def places(self, first: int, lanes: int) -> list[int]:
        """The value of the vectorized loop in every lane; those not in use repeat the last one."""
        return [first + min(lane, self.environment.used - 1) for lane in range(lanes)]

    def integer(self, expr: Expr) -> Value:
        """A scalar integer, written into the outermost block where all its variables are known."""
        known: dict[Expr, Expr] = {Var(name): Int(value) for name, value in self.environment.integers.items()}
        expr = substitute(expr, known) if variables(expr) & self.environment.integers.keys() else expr
        if isinstance(expr, Int):
            return Value(str(expr.value), "int64")
        if isinstance(expr, Var):
            return self.running(expr.name)[0]
        if not isinstance(expr, Binary):
            raise CompileError(f"expected an integer expression, found {expr}")
        left, right = self.integer(expr.left), self.integer(expr.right)
        depth = max((self.running(name)[1] for name in variables(expr)), default=0)
        return self.arithmetic.integer_binary(expr.op, left, right, depth)

    def running(self, name: str) -> tuple[Value, int]:
        if name not in self.environment.running:
            raise CompileError(f"loop variable {name} is used outside its loop")
        return self.environment.running[name]

    def lookup(self, expr: Lookup) -> Value:
        """An element of a matrix of literals, one per lane where the vector variable chooses it."""
        element = known_element(expr, self.environment.integers)
        if element is not None:
            return literal(element, expr.dtype)
        vector = self.environment.vector
        if vector is None or vector[0] not in variables(expr.row) | variables(expr.column):
            row, column = self.integer(expr.row), self.integer(expr.column)
            return load_element(self.writer, self.arithmetic, expr, row, column)
        name, first, lanes = vector
        found = []
        for lane in self.places(first, lanes):
            here: dict[Expr, Expr] = {Var(name): Int(lane)}
            place = substitute(expr.row, here), substitute(expr.column, here)
            found.append(self.lookup(Lookup(expr.matrix, *place, expr.dtype)))
        return self.writer.join(found)

    # --------------------------------------------------------------------------------------- memory

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Affine:
        """Row-major position as an affine form; kept, because unrolling asks for it again and again."""
        found = self._offsets.get(id(indices))
        if found is not None:
            return found[1]
        position: Expr = ZERO
        for index, extent in zip(indices, buffer.shape, strict=True):
            position = add(mul(position, extent), index)
        form = rejoined(affine(position))
        self._offsets[id(indices)] = (indices, form)
        return form

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Place | None:
        """The address here; None where the lanes are not evenly spaced."""
        terms, constant = self.offset(buffer, indices)
        if not isinstance(constant, Int):
            raise CompileError(f"buffer {buffer.name}: offset {constant} is not bound")
        vector = self.environment.vector
        fixed, stride, moving = constant.value, 0, []
        for term, coefficient in terms.items():
            assert isinstance(coefficient, Int)
            if isinstance(term, Var) and term.name in self.environment.integers:
                fixed += coefficient.value * self.environment.integers[term.name]
            elif vector is not None and term == Var(vector[0]):
                fixed += coefficient.value * vector[1]
                stride = coefficient.value
            elif vector is not None and vector[0] in variables(term):
                return None
            else:
                moving.append((term, coefficient.value))
        return self.address(buffer, moving, fixed, stride)

    def address(self, buffer: Buffer, moving: list[tuple[Expr, int]], fixed: int, stride: int) -> Place:
        item_bytes = ITEM_BYTES[buffer.dtype]
        element = ELEMENT_TYPES[buffer.dtype] if buffer.dtype != "bool" else "i8"
        pointer, alignment = self.pointers[buffer.name], 64
        parts = []
        for term, coefficient in moving:
            value = self.integer(term)
            names = variables(term) & self.environment.running.keys()
            parts.append((max((self.running(name)[1] for name in names), default=0), value, coefficient))
            alignment = _common_alignment(alignment, coefficient * item_bytes)
        for depth, value, coefficient in sorted(parts, key=lambda part: part[0]):
            distance = value
            if coefficient != 1:
                distance = self.arithmetic.integer_binary("*", value, Value(str(coefficient), "int64"), depth)
            text = f"getelementptr inbounds {element}, ptr {pointer}, i64 {distance.text}"
            pointer = self.writer.value(text, "int64", depth=depth).text
        if fixed:
            text = f"getelementptr inbounds {element}, ptr {pointer}, i64 {fixed}"
            pointer = self.writer.value(text, "int64").text
        return Place(pointer, stride, _common_alignment(alignment, fixed * item_bytes))

    def load(self, load: Load) -> Value:
        buffer = load.buffer
        if buffer.scope is Scope.REGISTER:
            return self.environment.registers[self.register(load.buffer, load.indices)]
        place = self.place(buffer, load.indices)
        if place is None:
            repeated = self.repeated(load)
            return self.gather(load) if repeated is None else repeated
        lanes = self.lanes if place.stride != 0 else 1
        if lanes == 1:
            return self.scalar_load(buffer, place.pointer, place.alignment)
        if place.stride != 1:
            return self.gather(load)
        return self.vector_load(buffer, place, lanes)

    def read_key(self, buffer: Buffer, pointer: str, lanes: int) -> tuple[str, str, int, int]:
        return ("load", pointer, lanes, self.environment.versions.get(buffer.name, 0))

    def scalar_load(self, buffer: Buffer, pointer: str, alignment: int) -> Value:
        guards = [guard for guard in self.guards if guard.lanes == 1]
        if len(guards) < len(self.guards):
            guards.append(self.any_lane(self.masks()))
        for guard in guards:
            pointer = self.guarded_pointer(pointer, guard)
            alignment = min(alignment, ITEM_BYTES[buffer.dtype])
        kind = "i8" if buffer.dtype == "bool" else ELEMENT_TYPES[buffer.dtype]
        loaded = self.writer.value(
            f"load {kind}, ptr {pointer}, align {alignment}",
            buffer.dtype,
            key=self.read_key(buffer, pointer, 1),
        )
        if buffer.dtype == "bool":
            return self.writer.value(f"trunc i8 {loaded.text} to i1", "bool")
        return loaded

    def guarded_pointer(self, pointer: str, guard: Value) -> str:
        """The pointer where the guard holds, else zeros: such a load stays in bounds and needs no branch."""
        return self.writer.value(f"select i1 {guard.text}, ptr {pointer}, ptr @{ZEROS}", "int64").text

    def all_hold(self, masks: list[Value]) -> Value:
        """The conjunction of conditions, lane by lane."""
        mask = masks[0]
        for other in masks[1:]:
            mask = self.writer.value(f"and {mask.type} {mask.text}, {other.text}", "bool", mask.lanes)
        return mask

    def any_lane(self, masks: list[Value]) -> Value:
        """Whether some lane wants a value that all lanes share."""
        mask = self.all_hold(masks)
        function = f"@llvm.vector.reduce.or.v{mask.lanes}i1"
        self.writer.declare(f"i1 {function}({mask.type})")
        return self.writer.value(f"call i1 {function}({mask.type} {mask.text})", "bool")

    def vector_load(self, buffer: Buffer, place: Place, lanes: int) -> Value:
        if buffer.dtype == "bool":
            raise CompileError("vectors of bool are not stored in memory; vectorize another loop")
        pointer, alignment = place.pointer, place.alignment
        masks = self.masks()
        for guard in self.guards:
            if guard.lanes == 1:
                pointer = self.guarded_pointer(pointer, guard)
        kind = vector_type(buffer.dtype, lanes)
        if not masks:
            return self.writer.value(
                f"load {kind}, ptr {pointer}, align {alignment}",
                buffer.dtype,
                lanes,
                key=self.read_key(buffer, pointer, lanes),
            )
        mask = self.all_hold(masks)
        function = f"@llvm.masked.load.v{lanes}{suffix(buffer.dtype)}.p0"
        self.writer.declare(f"{kind} {function}(ptr, {mask.type}, {kind})")
        alignment = ITEM_BYTES[buffer.dtype] if any(guard.lanes != 1 for guard in self.guards) else alignment
        address = f"ptr align {alignment} {pointer}"
        return self.writer.value(
            f"call {kind} {function}({address}, {mask.type} {mask.text}, {kind} zeroinitializer)",
            buffer.dtype,
            lanes,
            key=("masked", mask.text, self.read_key(buffer, pointer, lanes)),
        )

    def repeated(self, load: Load) -> Value | None:
        """Elements next to each other of which several lanes each read one: an index with lane // n; None
        where it is no such index, or a guard differs from lane to lane."""
        vector = self.environment.vector
        assert vector is not None
        name, first, lanes = vector
        terms, _ = self.offset(load.buffer, load.indices)
        found = [(term, factor) for term, factor in terms.items() if name in variables(term)]
        if any(guard.lanes != 1 for guard in self.guards) or len(found) != 1:
            return None
        match found[0]:
            case (Binary("//", Var(), Int(repeats)), Int(1)):
                pass
            case _:
                return None
        start, end = first // repeats, (first + self.environment.used - 1) // repeats + 1
        quotient = Binary("//", Var(name), Int(repeats))
        element = Var(f"{name}.element")
        indices = tuple(_replaced(index, quotient, element) for index in load.indices)
        width = 1 << (end - start - 1).bit_length()
        if width > end - start and not self.loads_parts:
            return None
        used = self.environment.used
        self.environment.vector, self.environment.used = (element.name, start, width), end - start
        source = self.evaluate(Load(load.buffer, indices)) if width > 1 else None
        self.environment.vector, self.environment.used = None, 0
        if source is None:
            self.environment.integers[element.name] = start
            source = self.load(Load(load.buffer, indices))
            del self.environment.integers[element.name]
        self.environment.vector, self.environment.used = vector, used
        if width == 1:
            return source
        places = ", ".join(f"i32 {lane // repeats - start}" for lane in self.places(first, lanes))
        return self.writer.value(
            f"shufflevector {source.type} {source.text}, {source.type} poison, <{lanes} x i32> <{places}>",
            source.dtype,
            lanes,
        )

    def gather(self, load: Load) -> Value:
        """Lane by lane: every lane is a scalar load of its own under its own guards."""
        vector, guards = self.environment.vector, self.guards
        assert vector is not None
        lanes: list[Value] = []
        for lane in range(vector[2]):
            if lane >= self.environment.used:
                lanes.append(lanes[-1])
                continue
            with_lane = tuple(
                substitute(index, {Var(vector[0]): Int(vector[1] + lane)}) for index in load.indices
            )
            self.environment.vector = None
            self.guards = [self.writer.extract(guard, lane) for guard in guards]
            place = self.place(load.buffer, with_lane)
            assert place is not None
            lanes.append(self.scalar_load(load.buffer, place.pointer, place.alignment))
            self.environment.vector, self.guards = vector, guards
        return self.writer.join(lanes)

    def register(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int, int]:
        """Which register holds an element (or the lanes of a vector)."""
        terms, constant = self.offset(buffer, indices)
        vector = self.environment.vector
        assert isinstance(constant, Int)
        position, lanes = constant.value, 1
        for term, coefficient in terms.items():
            assert isinstance(coefficient, Int)
            if isinstance(term, Var) and term.name in self.environment.integers:
                position += coefficient.value * self.environment.integers[term.name]
            elif vector is not None and term == Var(vector[0]):
                position += coefficient.value * vector[1]
                lanes = vector[2]
            else:
                raise CompileError(f"register buffer {buffer.name}: index term {term} is no constant")
        return (buffer.name, position, lanes)

    # ----------------------------------------------------------------------------------- arithmetic

    def binary(self, expr: Binary) -> Value:
        if expr.op == "+" and isinstance(expr.right, Binary) and expr.right.op == "*":
            fused = self.multiply_add(expr.left, expr.right)
            if fused is not None:
                return fused
        alike = self.decided(expr) or self.compared(expr) or self.uniform_comparison(expr)
        if alike is not None:
            return alike
        left, right = self.evaluate(expr.left), self.evaluate(expr.right)
        if expr.op in ("and", "or") and (settled := _settled(expr.op, left, right)) is not None:
            return settled
        if left.dtype == right.dtype == "int64" and left.lanes == right.lanes == 1 and not _reads(expr):
            # Index arithmetic belongs as far out as its variables allow.
            names = _scalar_variables(expr)
            if names is not None and not names & self.environment.integers.keys():
                depth = max((self.running(name)[1] for name in names), default=0)
                return self.arithmetic.integer_binary(expr.op, left, right, depth)
        (left, right), lanes = self.arithmetic.together(left, right)
        if expr.op in ("and", "or"):
            return self.writer.value(f"{expr.op} {left.type} {left.text}, {right.text}", "bool", lanes)
        if left.dtype not in FLOATS:
            return self.arithmetic.integer_binary(expr.op, left, right, None)
        return self.arithmetic.float_binary(expr.op, left, right, isinstance(expr.right, Literal))

    def multiply_add(self, addend: Expr, multiplied: Binary) -> Value | None:
        factor = known_factor(multiplied, self.environment.integers)
        if factor is not None:
            start = self.evaluate(addend)
            if factor[0] == 0:
                return start
            return add_multiple(self.writer, start, factor[0], self.evaluate(factor[1]))
        left, right = self.evaluate(multiplied.left), self.evaluate(multiplied.right)
        if left.dtype not in FLOATS:
            return None
        if _is_zero(left) or _is_zero(right):  # a tap that lies in the padding for certain
            return self.evaluate(addend)
        (a, b, c), lanes = self.arithmetic.together(left, right, self.evaluate(addend))
        function = f"@llvm.fmuladd.{'v' + str(lanes) if lanes > 1 else ''}{suffix(a.dtype)}"
        self.writer.declare(f"{a.type} {function}({a.type}, {a.type}, {a.type})")
        return self.writer.value(
            f"call {a.type} {function}({a.type} {a.text}, {b.type} {b.text}, {c.type} {c.text})",
            a.dtype,
            lanes,
        )

    def select(self, condition: Value, then: Expr, otherwise: Expr) -> Value:
        if condition.text in ("true", "false"):
            return self.evaluate(then if condition.text == "true" else otherwise)
        if isinstance(then, Load) and otherwise == Literal(0.0, then.buffer.dtype):
            self.guards.append(condition)
            loaded = self.evaluate(then)
            self.guards.pop()
            if condition.lanes in (1, loaded.lanes):
                return loaded  # a guarded load is zero where the guard does not hold
        branches = []
        for branch, guard in ((then, condition), (otherwise, None)):
            if not _reads(branch):
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
        text = f"select {condition.type} {condition.text}, {first.type} {first.text}"
        return self.writer.value(f"{text}, {second.type} {second.text}", first.dtype, lanes)


def _replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The integer expression with a sub-expression replaced."""
    if expr == old:
        return new
    if isinstance(expr, Binary):
        return fold(expr.op, _replaced(expr.left, old, new), _replaced(expr.right, old, new))
    return expr


def _common_alignment(alignment: int, distance_bytes: int) -> int:
    while distance_bytes % alignment:
        alignment //= 2
    return alignment


def _settled(op: str, left: Value, right: Value) -> Value | None:
    """left and right, or left or right, where one of them is known."""
    for one, other in ((left, right), (right, left)):
        if one.text in ("true", "false"):
            return other if (one.text == "true") == (op == "and") else one
    return None


def _is_zero(value: Value) -> bool:
    return not value.text.startswith("%") and value.text == literal(0.0, value.dtype).text


def _reads(expr: Expr) -> bool:
    """Whether an expression loads from memory."""
    match expr:
        case Load():
            return True
        case Binary(_, left, right):
            return _reads(left) or _reads(right)
        case Call(_, arguments):
            return any(_reads(argument) for argument in arguments)
        case Select(condition, then, otherwise):
            return _reads(condition) or _reads(then) or _reads(otherwise)
        case Cast(_, value, _):
            return _reads(value)
        case _:
            return False


def _scalar_variables(expr: Expr) -> set[str] | None:
    """Variables of a pure integer expression; None where something else is in it."""
    if isinstance(expr, Var):
        return {expr.name}
    if isinstance(expr, Int):
        return set()
    if isinstance(expr, Binary):
        left, right = _scalar_variables(expr.left), _scalar_variables(expr.right)
        return None if left is None or right is None else left | right
    return None
