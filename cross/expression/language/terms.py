"""Scalar terms: the right-hand sides of index expressions.

The whole grammar, closed:

    Term = Const | Axis | Read | Lookup | Binary | Call | Select | Cast | Reduce

A term is a value: frozen, compared by structure (an `Axis` by identity). Python's operators build
terms; comparisons that Python reserves for identity are functions (`equal`). `Reduce` may stand only
at the root of a computed tensor.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cross.errors import ExpressionError

if TYPE_CHECKING:
    from cross.expression.language.tensor import Tensor

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")
ITEM_BYTES = {
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}

ARITHMETIC = ("+", "-", "*", "/", "//", "%", "min", "max")
COMPARISONS = ("<", "<=", "==")
LOGICAL = ("and", "or")
FUNCTIONS = ("exp", "log", "sqrt", "tanh", "sigmoid", "erf", "floor", "ceil", "abs", "neg", "pow", "not")

Number = int | float | bool


class AxisKind(enum.Enum):
    """A loop axis indexes the output (SPACE) or is summed over (REDUCE)."""

    SPACE = "space"
    REDUCE = "reduce"


class Term:
    """Base of all scalar terms: operators only."""

    __slots__ = ()

    @property
    def dtype(self) -> str:
        raise ExpressionError(f"{type(self).__name__} has no dtype")

    def __add__(self, other: Operand) -> Term:
        return binary("+", self, other)

    def __radd__(self, other: Operand) -> Term:
        return binary("+", other, self)

    def __sub__(self, other: Operand) -> Term:
        return binary("-", self, other)

    def __rsub__(self, other: Operand) -> Term:
        return binary("-", other, self)

    def __mul__(self, other: Operand) -> Term:
        return binary("*", self, other)

    def __rmul__(self, other: Operand) -> Term:
        return binary("*", other, self)

    def __truediv__(self, other: Operand) -> Term:
        return binary("/", self, other)

    def __rtruediv__(self, other: Operand) -> Term:
        return binary("/", other, self)

    def __floordiv__(self, other: Operand) -> Term:
        return binary("//", self, other)

    def __mod__(self, other: Operand) -> Term:
        return binary("%", self, other)

    def __neg__(self) -> Term:
        return Call("neg", (self,))

    def __lt__(self, other: Operand) -> Term:
        return binary("<", self, other)

    def __le__(self, other: Operand) -> Term:
        return binary("<=", self, other)

    def __gt__(self, other: Operand) -> Term:
        return binary("<", other, self)

    def __ge__(self, other: Operand) -> Term:
        return binary("<=", other, self)

    def __bool__(self) -> bool:
        raise ExpressionError("a term has no truth value; use select(), logical_and() or logical_or()")


Operand = Term | int | float | bool


@dataclass(frozen=True, slots=True)
class Const(Term):
    """A literal of a given dtype."""

    value: Number
    kind: str

    @property
    def dtype(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True, eq=False)
class Axis(Term):
    """A loop axis 0 <= name < extent; compared by identity."""

    name: str
    extent: int
    kind: AxisKind = AxisKind.SPACE

    @property
    def dtype(self) -> str:
        return "int64"


@dataclass(frozen=True, slots=True)
class Read(Term):
    """One element of a tensor."""

    tensor: Tensor
    indices: tuple[Term, ...]

    @property
    def dtype(self) -> str:
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Lookup(Term):
    """One element of a matrix of literals, such as the transform matrices of Winograd convolution."""

    matrix: tuple[tuple[float, ...], ...]
    row: Term
    column: Term
    kind: str

    @property
    def dtype(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Binary(Term):
    """Arithmetic, comparison or logic on two terms of one dtype."""

    op: str
    left: Term
    right: Term

    @property
    def dtype(self) -> str:
        return self.left.dtype if self.op in ARITHMETIC else "bool"


@dataclass(frozen=True, slots=True)
class Call(Term):
    """An elementwise function (see FUNCTIONS); the result has the dtype of the first argument."""

    function: str
    arguments: tuple[Term, ...]

    @property
    def dtype(self) -> str:
        return self.arguments[0].dtype


@dataclass(frozen=True, slots=True)
class Select(Term):
    """`then` where the condition holds, else `otherwise`; a read in the branch not taken is never made."""

    condition: Term
    then: Term
    otherwise: Term

    @property
    def dtype(self) -> str:
        return self.then.dtype


@dataclass(frozen=True, slots=True)
class Cast(Term):
    """Conversion to another dtype (float to integer truncates)."""

    kind: str
    value: Term

    @property
    def dtype(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Reduce(Term):
    """`combiner` ("sum", "max" or "min") over the body for all values of the reduction axes."""

    combiner: str
    body: Term
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return self.body.dtype


def constant(value: Operand, dtype: str) -> Term:
    """A term of the given dtype: numbers become literals, terms are kept if their dtype fits."""
    if not isinstance(value, Term):
        if dtype in INTEGERS and int(value) != value:
            raise ExpressionError(f"expected a number that {dtype} holds, found {value!r}; use cast()")
        kind = bool if dtype == "bool" else int if dtype in INTEGERS else None
        return Const(kind(value) if kind else value, dtype)
    if value.dtype != dtype and {value.dtype, dtype} <= {"int64", "int32"}:
        return cast(dtype, value)
    return value


def binary(op: str, left: Operand, right: Operand) -> Term:
    """A binary term; a Python number takes the dtype of the other side.

    Raises:
        ExpressionError: the two sides have different dtypes.
    """
    if isinstance(left, Term):
        dtype = left.dtype
    elif isinstance(right, Term):
        dtype = right.dtype
    else:
        raise ExpressionError(f"operator {op} needs a term on one side, found {left!r} and {right!r}")
    left, right = constant(left, dtype), constant(right, dtype)
    if left.dtype != right.dtype:
        raise ExpressionError(
            f"operator {op}: expected one dtype on both sides, found {left.dtype} and {right.dtype}; "
            "use cast() on one of them"
        )
    if op == "/" and dtype not in FLOATS:
        raise ExpressionError(f"operator / works on floats, found {dtype}; use // for integers")
    return _fold(op, left, right)


def _fold(op: str, left: Term, right: Term) -> Term:
    """Index arithmetic on literals is folded, so that printed expressions and keys stay small."""
    if left.dtype in INTEGERS:
        if isinstance(left, Const) and isinstance(right, Const) and op in _FOLD:
            return Const(_FOLD[op](int(left.value), int(right.value)), left.dtype)
        if isinstance(right, Const) and (op, right.value) in (("+", 0), ("-", 0), ("*", 1), ("//", 1)):
            return left
        if isinstance(left, Const) and (op, left.value) in (("+", 0), ("*", 1)):
            return right
    return Binary(op, left, right)


_FOLD: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def cast(dtype: str, value: Term) -> Term:
    """The value converted to dtype."""
    if dtype not in DTYPES:
        raise ExpressionError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    return value if value.dtype == dtype else Cast(dtype, value)


def select(condition: Term, then: Operand, otherwise: Operand) -> Term:
    """`then` where the condition holds, else `otherwise`.

    Raises:
        ExpressionError: the condition is no bool, or the branches differ in dtype.
    """
    if condition.dtype != "bool":
        raise ExpressionError(f"select() needs a bool condition, found {condition.dtype}")
    if isinstance(then, Term):
        dtype = then.dtype
    elif isinstance(otherwise, Term):
        dtype = otherwise.dtype
    else:
        raise ExpressionError("select() needs a term in one of its branches")
    then, otherwise = constant(then, dtype), constant(otherwise, dtype)
    if then.dtype != otherwise.dtype:
        raise ExpressionError(f"select(): expected one dtype, found {then.dtype} and {otherwise.dtype}")
    return Select(condition, then, otherwise)


def lookup(matrix: Sequence[Sequence[float]], row: Operand, column: Operand, dtype: str = "float32") -> Term:
    """matrix[row][column]. Where the loops around are unrolled, it is a literal in the program.

    Raises:
        ExpressionError: the matrix is empty, or its rows differ in length.
    """
    rows = tuple(tuple(float(value) for value in line) for line in matrix)
    lengths = {len(line) for line in rows}
    if len(lengths) != 1 or lengths == {0}:
        raise ExpressionError(
            f"lookup(): expected rows of one length, at least 1, found lengths {[len(line) for line in rows]}"
        )
    return Lookup(rows, constant(row, "int64"), constant(column, "int64"), dtype)


def children(term: Term) -> tuple[Term, ...]:
    """The direct sub-terms, in order."""
    match term:
        case Read(_, indices):
            return indices
        case Lookup(_, row, column, _):
            return (row, column)
        case Binary(_, left, right):
            return (left, right)
        case Call(_, arguments):
            return arguments
        case Select(condition, then, otherwise):
            return (condition, then, otherwise)
        case Cast(_, value) | Reduce(_, value, _):
            return (value,)
        case _:
            return ()


def rebuild(term: Term, parts: Sequence[Term]) -> Term:
    """The same node with other sub-terms."""
    match term:
        case Read():
            return replace(term, indices=tuple(parts))
        case Lookup():
            return replace(term, row=parts[0], column=parts[1])
        case Binary():
            return replace(term, left=parts[0], right=parts[1])
        case Call():
            return replace(term, arguments=tuple(parts))
        case Select():
            return Select(*parts)
        case Cast():
            return replace(term, value=parts[0])
        case Reduce():
            return replace(term, body=parts[0])
        case _:
            return term


def walk(term: Term) -> Iterator[Term]:
    """The term and all its sub-terms, parents first."""
    yield term
    for child in children(term):
        yield from walk(child)


def substitute(term: Term, values: dict[Axis, Term]) -> Term:
    """The term with axes replaced by terms."""
    if isinstance(term, Axis):
        return values.get(term, term)
    parts = children(term)
    if not parts:
        return term
    return rebuild(term, [substitute(part, values) for part in parts])


INTEGER_LIMITS = {"int8": 127, "uint8": 255, "int16": 2**15 - 1, "int32": 2**31 - 1, "int64": 2**63 - 1}


def neutral_value(combiner: str, dtype: str) -> float | int:
    """The neutral element of a reduction: 0, or the end of the dtype's range that never wins."""
    if combiner == "sum":
        return 0.0 if dtype in FLOATS else 0
    if dtype in FLOATS:
        return float("inf") if combiner == "min" else float("-inf")
    if combiner == "min":
        return INTEGER_LIMITS[dtype]
    return 0 if dtype.startswith("u") else -INTEGER_LIMITS[dtype] - 1
