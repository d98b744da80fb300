"""Scalar terms: the one grammar of index expressions and of loop nests.

    Term = Int | Const | Lookup | Binary | Call | Select | Cast | a leaf of its level

Leaves of an index expression are axes and reads of tensors (tensor.py); those of a loop nest are knobs, loop
variables and loads from buffers (cross/loopnest/nodes.py). What operators and functions there are and
what they mean is a table (operations.py).

A term is a value: frozen, compared by structure. Python's operators build terms; comparisons that Python
reserves for identity are functions (`equal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cross.errors import ExpressionError
from cross.expression.language.dtypes import DTYPES, INDEX
from cross.expression.language.operations import INTEGER, OPERATIONS


class Term(msgspec.Struct, frozen=True, gc=False):
    """Base of all terms: what every node answers, and Python's operators."""

    if TYPE_CHECKING:

        @property
        def dtype(self) -> str:
            """The dtype of the value: a field or a property of each node."""

    @property
    def parts(self) -> tuple[Term, ...]:
        """The direct sub-terms, in order of evaluation."""
        return ()

    def with_parts(self, *parts: Any) -> Term:
        """A node of the same kind with other sub-terms."""
        return self

    def mapped(self, change: Callable[[Term], Term]) -> Term:
        """A node of the same kind whose direct sub-terms are those of this one, changed."""
        parts = self.parts
        return self.with_parts(*map(change, parts)) if parts else self

    def __add__(self, other: Operand) -> Term:
        return call("+", self, other)

    def __radd__(self, other: Operand) -> Term:
        return call("+", other, self)

    def __sub__(self, other: Operand) -> Term:
        return call("-", self, other)

    def __rsub__(self, other: Operand) -> Term:
        return call("-", other, self)

    def __mul__(self, other: Operand) -> Term:
        return call("*", self, other)

    def __rmul__(self, other: Operand) -> Term:
        return call("*", other, self)

    def __truediv__(self, other: Operand) -> Term:
        return call("/", self, other)

    def __rtruediv__(self, other: Operand) -> Term:
        return call("/", other, self)

    def __floordiv__(self, other: Operand) -> Term:
        return call("//", self, other)

    def __mod__(self, other: Operand) -> Term:
        return call("%", self, other)

    def __neg__(self) -> Term:
        return call("neg", self)

    def __lt__(self, other: Operand) -> Term:
        return call("<", self, other)

    def __le__(self, other: Operand) -> Term:
        return call("<=", self, other)

    def __gt__(self, other: Operand) -> Term:
        return call("<", other, self)

    def __ge__(self, other: Operand) -> Term:
        return call("<=", other, self)

    def __bool__(self) -> bool:
        raise ExpressionError("a term has no truth value; use select(), logical_and() or logical_or()")


Operand = Term | int | float | bool


class Int(Term, frozen=True, gc=False):
    """A literal index."""

    value: int

    @property
    def dtype(self) -> str:
        return INDEX


class Const(Term, frozen=True, gc=False):
    """A literal of any dtype but that of indices."""

    value: int | float | bool
    dtype: str


class Lookup(Term, frozen=True, gc=False):
    """One element of a matrix of literals; a literal itself once row and column are known.

    The transform matrices of Winograd convolution are such.
    """

    matrix: tuple[tuple[float, ...], ...]
    row: Term
    column: Term
    dtype: str

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.row, self.column)

    def with_parts(self, *parts: Any) -> Term:
        return Lookup(self.matrix, parts[0], parts[1], self.dtype)


class Binary(Term, frozen=True, gc=False, cache_hash=True):
    """An operator (a row of OPERATIONS with a precedence) on two terms of one dtype."""

    op: str
    left: Term
    right: Term

    @property
    def dtype(self) -> str:
        return OPERATIONS[self.op].result or self.left.dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.left, self.right)

    def with_parts(self, *parts: Any) -> Term:
        return Binary(self.op, *parts)


class Call(Term, frozen=True, gc=False):
    """A function (a row of OPERATIONS without a precedence) of terms of one dtype."""

    function: str
    arguments: tuple[Term, ...]

    @property
    def dtype(self) -> str:
        return OPERATIONS[self.function].result or self.arguments[0].dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return self.arguments

    def with_parts(self, *parts: Any) -> Term:
        return Call(self.function, parts)


class Select(Term, frozen=True, gc=False):
    """`then` where the condition holds, else `otherwise`; a read in the branch not taken is never made."""

    condition: Term
    then: Term
    otherwise: Term

    @property
    def dtype(self) -> str:
        return self.then.dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.condition, self.then, self.otherwise)

    def with_parts(self, *parts: Any) -> Term:
        return Select(*parts)


class Cast(Term, frozen=True, gc=False):
    """Conversion to another dtype.

    A float becomes the integer next to it on the side of 0; out of the dtype's range the end of the range, a
    NaN 0. An integer out of range wraps. As a bool, what is not 0 is true.
    """

    dtype: str
    value: Term

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.value,)

    def with_parts(self, *parts: Any) -> Term:
        return Cast(self.dtype, *parts)


def constant(value: Operand, dtype: str) -> Term:
    """A term of the given dtype: numbers become literals, terms are kept if their dtype fits."""
    if not isinstance(value, Term):
        if DTYPES[dtype].kind in INTEGER:
            if int(value) != value:
                raise ExpressionError(f"expected a number that {dtype} holds, found {value!r}; use cast()")
            return Int(int(value)) if dtype == INDEX else Const(int(value), dtype)
        return Const(bool(value) if dtype == "bool" else value, dtype)
    if value.dtype != dtype and {value.dtype, dtype} <= {"int64", "int32"}:
        return cast(dtype, value)
    return value


def call(name: str, *operands: Operand) -> Term:
    """An operation on terms; a Python number takes the dtype of the terms.

    Raises:
        ExpressionError: the operands differ in dtype, or have one that the operation does not take.
    """
    row = OPERATIONS[name]
    dtype = next((operand.dtype for operand in operands if isinstance(operand, Term)), None)
    if dtype is None:
        raise ExpressionError(f"{name} needs a term among its operands, found {operands}")
    terms = tuple(constant(operand, dtype) for operand in operands)
    if any(term.dtype != dtype for term in terms):
        raise ExpressionError(
            f"{name}: expected one dtype, found {' and '.join(term.dtype for term in terms)}; "
            "use cast() on one of them"
        )
    if DTYPES[dtype].kind not in row.kinds:
        advice = "// for integers" if name == "/" else "cast()"
        raise ExpressionError(f"{name} works on {' or '.join(row.kinds)} values, found {dtype}; use {advice}")
    return _folded(name, *terms) if row.precedence else Call(name, terms)


def _folded(op: str, left: Term, right: Term) -> Term:
    """Arithmetic on integer literals is folded, so that printed expressions and keys stay small."""
    if DTYPES[left.dtype].kind in INTEGER:
        a, b = (int(item.value) if isinstance(item, Int | Const) else None for item in (left, right))
        fold = OPERATIONS[op].integer if op in ("+", "-", "*") else None
        if fold is not None and a is not None and b is not None:
            return constant(fold(a, b), left.dtype)
        if (op, b) in (("+", 0), ("-", 0), ("*", 1), ("//", 1)):
            return left
        if (op, a) in (("+", 0), ("*", 1)):
            return right
    return Binary(op, left, right)


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
    dtype = next((branch.dtype for branch in (then, otherwise) if isinstance(branch, Term)), None)
    if dtype is None:
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
    return Lookup(rows, constant(row, INDEX), constant(column, INDEX), dtype)


def walk(term: Term) -> Iterator[Term]:
    """The term and all its sub-terms, parents first."""
    waiting = [term]
    while waiting:
        item = waiting.pop()
        yield item
        waiting += reversed(item.parts)


def substitute(term: Term, values: Mapping[Any, Term]) -> Term:
    """The term with leaves replaced by terms."""
    return term.mapped(lambda part: substitute(part, values)) if term.parts else values.get(term, term)
