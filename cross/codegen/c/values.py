"""Expressions of a loop nest as C text: scalars, and vectors over one loop variable.

Quotients, remainders and minima of index arithmetic get names of their own, so that sources stay readable
where loops were fused; `take_lines` gives their definitions, which stand before the statement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from cross.codegen.buffers import rounds
from cross.codegen.c.arrays import Array
from cross.codegen.c.dialect import Dialect
from cross.codegen.c.names import Names
from cross.codegen.c.terms import without_parentheses
from cross.errors import CompileError
from cross.expression.language.dtypes import DTYPES, FLOATS, INDEX, ITEM_BYTES
from cross.expression.language.operations import BITS, INTEGER, OPERATIONS
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Lookup, Select, call
from cross.loopnest.affine import affine
from cross.loopnest.bounds import Interval, bounds, is_index
from cross.loopnest.nodes import ONE, Buffer, Expr, Load, Var, conjuncts, variables

_COMPARISONS = ("<", "<=", "==")
_FLOOR = {
    "floor_div": "int floor_div(int a, int b) { return a / b - (a % b < 0); }",
    "floor_mod": "int floor_mod(int a, int b) { return a - floor_div(a, b) * b; }",
}
# A bfloat16 is the upper half of a float; it is rounded to even, and a NaN stays one.
_OF_BFLOAT16 = (
    "float float_of_bfloat16(unsigned short a) "
    "{ union { unsigned bits; float number; } both; both.bits = (unsigned)a << 16; return both.number; }"
)
_TO_BFLOAT16 = (
    "unsigned short bfloat16_of_float(float a) "
    "{ union { float number; unsigned bits; } both; both.number = a; "
    "if (a != a) return (both.bits & 0x80000000u | 0x7fc00000u) >> 16; "
    "return (both.bits + 0x7fff + (both.bits >> 16 & 1)) >> 16; }"
)
_SAME_BITS = frozenset(f"as_{dtype}" for dtype in BITS)
_ROUNDED = {"*": "product", "/": "quotient"}
_NAMED = ("//", "%", "min", "max", "ceildiv")


class Values:
    """Expressions at one place of a kernel."""

    def __init__(self, dialect: Dialect, names: Names) -> None:
        self.dialect = dialect
        self.names = names
        self.variables: dict[str, str] = {}  # C names of the loops around
        self.ranges: dict[str, Interval] = {}
        self.arrays: dict[str, Array] = {}
        self.tables: dict[tuple[tuple[float, ...], ...], tuple[str, str]] = {}  # with their dtype
        self.helpers: dict[str, str] = {}  # functions that the source needs, by name
        self.dtypes: set[str] = set()
        # whether the result is rounded to integers: fused multiply-adds would choose other ones
        self.rounded = False
        self.assumed: set[Expr] = set()
        self.kept: dict[Expr, str] = {}  # guarded reads that have been made, and where their values are
        self._lanes: dict[str, int] = {}
        self._named: dict[Expr, str] = {}
        self._lines: list[str] = []

    def take_lines(self) -> list[str]:
        """The definitions that the text since the last call needs."""
        lines, self._lines = self._lines, []
        for name in self._named.values():
            self.names.free(name)
        self._named = {}
        return lines

    @contextmanager
    def lane(self, var: str, number: int) -> Iterator[None]:
        """Within, a variable has the value of one lane."""
        self._lanes[var] = number
        yield
        del self._lanes[var]

    # -------------------------------------------------------------------------------------------- scalars

    def scalar(self, expression: Expr) -> str:
        """The text of a scalar expression; an operand of anything."""
        match expression:
            case Int(value):
                return str(value) if value >= 0 else f"({value})"
            case Var(name):
                return str(self._lanes[name]) if name in self._lanes else self.variables[name]
            case Const(value, dtype):
                return self.literal(value, dtype)
            case Load(buffer, indices):
                return self.arrays[buffer.name].load(self, indices)
            case Lookup(matrix, row, column, dtype):
                return self._lookup(matrix, row, column, dtype)
            case Binary():
                return self._wrapped(expression.dtype, self._binary(expression))
            case Call():
                return self._wrapped(expression.dtype, self._call(expression, self.scalar))
            case Select(condition, then, otherwise):
                if expression in self.kept:
                    return self.kept[expression]
                left = self._open(condition)
                if left is None:
                    return self.scalar(then)
                return f"({self.scalar(left)} ? {self.scalar(then)} : {self.scalar(otherwise)})"
            case Cast(dtype, value):
                return self._cast(dtype, value.dtype, self.scalar(value))
            case _:
                raise CompileError(f"{expression} is left after binding")

    def assignment(self, buffer: Buffer, indices: tuple[Expr, ...], value: str) -> str:
        """The statement that stores a value as an element of a buffer."""
        array = self.arrays[buffer.name]
        element = array.element(self, indices)
        if array.converts(self.dialect):
            template = self.dialect.store[buffer.dtype]
            return template.format(space=array.space, lanes="", address=f"&{element}", value=value)
        return f"{element} = {without_parentheses(value)};"

    def integer(self, expression: Expr) -> str:
        """The text of an index, put together from its terms."""
        if not is_index(expression):
            return self.scalar(expression)
        terms, constant = affine(expression)
        texts: list[str] = []
        fixed = 0
        for term, coefficient in (*terms.items(), (constant, ONE)):
            factor = coefficient.value if isinstance(coefficient, Int) else 1
            if isinstance(term, Int):
                fixed += factor * term.value
            elif isinstance(term, Var) and term.name in self._lanes:
                fixed += factor * self._lanes[term.name]
            else:
                texts.append(self._term(term, coefficient, not texts))
        if not texts:
            return self.scalar(Int(fixed))
        return "".join(texts) + (f" {'-' if fixed < 0 else '+'} {abs(fixed)}" if fixed else "")

    def _term(self, term: Expr, coefficient: Expr, first: bool) -> str:
        """One term of a sum, with its sign."""
        text, negative = self.scalar(term), isinstance(coefficient, Int) and coefficient.value < 0
        size = Int(abs(coefficient.value)) if isinstance(coefficient, Int) else coefficient
        if size != ONE:
            text = f"{text} * {self.scalar(size)}"
        sign = "-" if negative else "+"
        return f"{sign if negative else ''}{text}" if first else f" {sign} {text}"

    def type(self, dtype: str) -> str:
        """The C type of a dtype. Raises CompileError where the language has none."""
        if dtype not in self.dialect.types:
            raise CompileError(f"{self.dialect.language} kernels compute no {dtype}")
        self.dtypes.add(dtype)
        return self.dialect.types[dtype]

    def stored_type(self, dtype: str) -> str:
        """The C type of a dtype's elements in memory."""
        return self.dialect.stored.get(dtype, "") or self.type(dtype)

    def literal(self, value: float | int | bool, dtype: str) -> str:
        """A constant of a dtype."""
        if dtype in ("uint32", "uint64"):
            return f"{int(value)}u"  # C takes the first unsigned type that holds it
        if dtype not in FLOATS:
            lowest = dtype == "int64" and value == np.iinfo(dtype).min  # C has no negative literals
            return f"({int(value) + 1} - 1)" if lowest else str(int(value))
        if math.isinf(value):
            text = self.dialect.infinity[dtype]
            return text if value > 0 else f"(-{text})"
        text = repr(float(value)) + ("" if dtype == "float64" else "f")
        return text if value >= 0 else f"({text})"

    def _lookup(self, matrix: tuple[tuple[float, ...], ...], row: Expr, column: Expr, dtype: str) -> str:
        if isinstance(row, Int) and isinstance(column, Int):
            return self.literal(matrix[row.value][column.value], dtype)
        if matrix not in self.tables:
            self.tables[matrix] = (self.names.fresh(f"table{len(self.tables)}"), dtype)
        return f"{self.tables[matrix][0]}[{self.integer(row)}][{self.integer(column)}]"

    def _binary(self, expression: Binary) -> str:
        op, dtype = expression.op, expression.left.dtype
        is_extreme = op in ("min", "max")
        if dtype == INDEX and op in _NAMED and is_index(expression):
            return self._name(expression)
        if is_extreme:
            return self._extreme(
                op, dtype, "", [self.scalar(side) for side in (expression.left, expression.right)]
            )
        if op == "and":
            return self._all_of(expression)
        sides = [expression.left, expression.right]
        if dtype == "int64":
            as_operand = self.integer if op in _COMPARISONS else self._side
            texts = [as_operand(side) for side in sides]
        else:
            texts = [self.scalar(side) for side in sides]
        if self._is_once_rounded(op, dtype):
            return self._once_rounded(op, dtype, "", texts)
        return self._written(op, dtype, texts)

    def _all_of(self, condition: Expr) -> str:
        """A condition of several, those that are known to hold left out."""
        left = self._open(condition)
        assert left is not None  # callers leave out conditions of which everything is known
        texts = []
        for item in conjuncts(left):
            text = self.scalar(item)
            compares = isinstance(item, Binary) and item.op in _COMPARISONS
            texts.append(without_parentheses(text) if compares else text)
        return f"({' && '.join(texts)})"

    def _side(self, side: Expr) -> str:
        text = self.integer(side)
        return f"({text})" if " " in text and text == without_parentheses(text) else text

    def _name(self, expression: Binary) -> str:
        """A quotient, remainder, minimum or maximum of integers, under a name where no lane decides it."""
        text = self._integer_operation(expression)
        if variables(expression) & self._lanes.keys():
            return text
        if expression not in self._named:
            name = self.names.fresh(f"i{len(self._named)}")
            self._named[expression] = name
            self._lines.append(f"const int {name} = {text};")
        return self._named[expression]

    def _integer_operation(self, expression: Binary) -> str:
        op, left, right = expression.op, self._side(expression.left), self._side(expression.right)
        if op in ("min", "max"):
            return f"{op}({self.integer(expression.left)}, {self.integer(expression.right)})"
        if op == "ceildiv":
            return f"(({left} + {right} - 1) / {right})"
        if bounds(expression.left, self.ranges)[0] >= 0:
            return f"{left} {'/' if op == '//' else '%'} {right}"
        helper = "floor_div" if op == "//" else "floor_mod"
        self.helpers |= {name: _FLOOR[name] for name in ("floor_div", helper)}
        return f"{helper}({self.integer(expression.left)}, {right})"

    def _is_once_rounded(self, op: str, dtype: str) -> bool:
        return self.rounded and (op, self.type(dtype)) in self.dialect.rounded

    def _once_rounded(self, op: str, dtype: str, lanes: str, sides: list[str]) -> str:
        """A product or quotient of floats that stays a rounded number of its own."""
        scalar = self.type(dtype)
        kind, name = scalar + lanes, f"{_ROUNDED[op]}_of_{scalar}{lanes}"
        self.helpers[name] = f"{kind} {name}({kind} a, {kind} b) {self.dialect.rounded[op, scalar]}"
        return f"{name}({', '.join(map(without_parentheses, sides))})"

    def _extreme(self, op: str, dtype: str, lanes: str, sides: list[str]) -> str:
        """The smaller or larger of two values of a dtype, or of each of their lanes.

        C's fmin and fmax drop a NaN, which the grammar's min and max keep.
        """
        kind = self.type(dtype) + lanes
        name = f"{op}_{kind.replace(' ', '_')}"
        condition = f"a {'<' if op == 'max' else '>'} b"
        if dtype in FLOATS:
            condition = f"({condition}) | (b != b)"
        self.helpers[name] = f"{kind} {name}({kind} a, {kind} b) {{ return ({condition}) ? b : a; }}"
        return f"{name}({', '.join(map(without_parentheses, sides))})"

    def _wrapped(self, dtype: str, text: str) -> str:
        """A scalar that has been computed, as a value of its dtype: C computes narrow integers as int."""
        narrow = DTYPES[dtype].kind in INTEGER and ITEM_BYTES[dtype] < ITEM_BYTES["int32"]
        return f"({self.type(dtype)}){text}" if narrow else text

    def _cast(self, dtype: str, source: str, text: str) -> str:
        """A scalar in another dtype. C says nothing of floats that an integer does not hold."""
        if source == "bfloat16":
            self.helpers["float_of_bfloat16"] = _OF_BFLOAT16
            return self._cast(dtype, "float32", f"float_of_bfloat16({without_parentheses(text)})")
        if dtype == "bfloat16":
            self.helpers["bfloat16_of_float"] = _TO_BFLOAT16
            return f"bfloat16_of_float({without_parentheses(self._cast('float32', source, text))})"
        if dtype == "bool":
            return f"({text} != 0)"
        kind, other = self.type(dtype), self.type(source)
        name = f"{kind}_of_{other}".replace(" ", "_")
        if (other, kind) in self.dialect.widened:
            self.helpers[name] = f"{kind} {name}({other} a) {self.dialect.widened[other, kind]}"
            return f"{name}({without_parentheses(text)})"
        if source not in FLOATS or dtype in FLOATS:
            return f"({kind}){text}"
        limits = np.iinfo(dtype)
        low, high = (self.literal(float(end), source) for end in (limits.min, limits.max))
        most, least = self.literal(limits.max, dtype), self.literal(limits.min, dtype)
        self.helpers[name] = (
            f"{kind} {name}({other} a) "
            f"{{ return a >= {high} ? {most} : a > {low} ? ({kind})a : a == a ? {least} : 0; }}"
        )
        return f"{name}({without_parentheses(text)})"

    def _call(self, expression: Call, text: Callable[[Expr], str]) -> str:
        """A function; `text` writes its operands."""
        row, dtype = OPERATIONS[expression.function], expression.arguments[0].dtype
        if row.name in self.dialect.functions:
            self.helpers[row.name] = self.dialect.functions[row.name]
            return f"{row.name}({', '.join(map(without_parentheses, map(text, expression.arguments)))})"
        if row.name in _SAME_BITS:
            self._define_bits(row.name, self.type(dtype), self.type(row.result))
        if DTYPES[dtype].kind not in row.c and row.expansion is not None:
            return text(row.expansion(call, *expression.arguments))
        outside, self.rounded = self.rounded, self.rounded or rounds(expression)
        operands = [text(item) for item in expression.arguments]
        self.rounded = outside
        return self._written(expression.function, dtype, operands)

    def _lane_by_lane(self, name: str, kind: str, lanes: int, sides: list[str]) -> str:
        """A function of the dialect on each lane of two vectors."""
        whole, own = f"{kind}{lanes}", f"{name}_{lanes}"
        items = [f"{name}(a.s{lane:x}, b.s{lane:x})" for lane in range(lanes)]
        made = self.dialect.make_vector.format(type=kind, lanes=lanes, items=", ".join(items))
        self.helpers[name] = self.dialect.functions[name]
        self.helpers[own] = f"{whole} {own}({whole} a, {whole} b) {{ return {made}; }}"
        return f"{own}({', '.join(map(without_parentheses, sides))})"

    def _define_bits(self, name: str, source: str, result: str) -> None:
        """The function that gives the same bits in another type."""
        union = f"union {{ {source} given; {result} found; }} bits"
        self.helpers[name] = f"{result} {name}({source} a) {{ {union}; bits.given = a; return bits.found; }}"

    def _written(self, name: str, dtype: str, operands: list[str]) -> str:
        """An operation as its row says."""
        kind, ends = DTYPES[dtype].kind, self.dialect.function_suffixes.get(dtype, "")
        if kind not in OPERATIONS[name].c:
            raise CompileError(f"{self.dialect.language} kernels have no {name} of {dtype}")
        one = "1.0" if dtype == "float64" else "1.0f"
        return OPERATIONS[name].c[kind].format(*operands, f=ends, one=one)

    def _open(self, condition: Expr) -> Expr | None:
        """The part of a condition that is not known to hold here; None where all of it is known to hold."""
        if condition in self.assumed:
            return None
        if isinstance(condition, Binary) and condition.op == "and":
            left, right = self._open(condition.left), self._open(condition.right)
            if left is None or right is None:
                return right if left is None else left
            return Binary("and", left, right)
        return condition

    # -------------------------------------------------------------------------------------------- vectors

    def vector(self, expression: Expr, var: str, lanes: int) -> str:
        """The text of an expression as a vector of its values for var = 0, 1, ..."""
        dtype = expression.dtype
        if var not in variables(expression):
            return self._make(
                dtype, lanes, [self.scalar(expression)] * (1 if self.dialect.vectors else lanes)
            )
        match expression:
            case Load(buffer, indices):
                found = self.arrays[buffer.name].vector(self, indices, var, lanes)
                if found is not None:
                    return found
            case Select(condition, then, otherwise) if var not in variables(condition):
                left = self._open(condition)
                if left is None:
                    return self.vector(then, var, lanes)
                branches = [self.vector(branch, var, lanes) for branch in (then, otherwise)]
                return f"({self.scalar(left)} ? {branches[0]} : {branches[1]})"
            case Binary(op, left, right) if self.dialect.vectors and self._is_once_rounded(op, dtype):
                sides = [self.vector(side, var, lanes) for side in (left, right)]
                return self._once_rounded(op, dtype, str(lanes), sides)
            case Binary(op, left, right) if self.dialect.vectors and op in ("+", "-", "*", "/"):
                return f"({self.operand(left, var, lanes)} {op} {self.operand(right, var, lanes)})"
            case Binary("min" | "max" as op, left, right) if self.dialect.vectors:
                sides = [self.vector(side, var, lanes) for side in (left, right)]
                return self._extreme(op, dtype, str(lanes), sides)
            case Cast(to, value) if self.type(to) == self.type(value.dtype):
                return self.vector(value, var, lanes)
            case Call(name, (left, right)) if self.dialect.vectors and name in self.dialect.functions:
                sides = [self.vector(side, var, lanes) for side in (left, right)]
                return self._lane_by_lane(name, self.type(dtype), lanes, sides)
            case Call(name) if self.dialect.vectors and dtype != "bool" and name not in _SAME_BITS:
                return self._call(expression, lambda part: self.vector(part, var, lanes))
            case _:
                pass
        return self._make(dtype, lanes, self.elements(expression, var, lanes))

    def operand(self, expression: Expr, var: str, lanes: int) -> str:
        """A vector, or a scalar where the operation repeats it for all lanes."""
        if var in variables(expression):
            return self.vector(expression, var, lanes)
        return self.scalar(expression)

    def elements(self, expression: Expr, var: str, lanes: int) -> list[str]:
        """The scalars of all lanes."""
        found = []
        for number in range(lanes):
            with self.lane(var, number):
                found.append(self.scalar(expression))
        return found

    def _make(self, dtype: str, lanes: int, items: list[str]) -> str:
        return self.dialect.make_vector.format(type=self.type(dtype), lanes=lanes, items=", ".join(items))
