"""ONE way as loops: the grammar of loop nests.

    Expr      = a term (cross/expression/language/terms.py) whose leaves are Knob, Var and Load
    Statement = For | Block | Store | Allocate | Barrier
    LoopNest  = name, arguments, workspace, body

Integers (loop extents, indices) and scalar values share the grammar of terms. A parametric nest has
`Knob` leaves in extents and indices; binding replaces them by integers (bind.py). Everything is a value:
frozen, compared by structure, names of loop variables and buffers unique within a nest.

Start here, then lower.py (schedule to nest), bind.py, verify.py, printer.py.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from cross.expression.language.dtypes import INDEX
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Const, Int, Term, walk
from cross.schedule.packing import Packing

Expr = Term


class LoopKind(enum.Enum):
    """How the iterations of a loop run."""

    SERIAL = "for"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    BLOCK = "block"  # GPU: over blocks of threads, which share nothing but the arguments and the workspace
    THREAD = "thread"  # GPU: over the threads of a block; its end joins them (see threads.py)
    VIRTUAL_THREAD = "virtual thread"  # GPU: pieces of one thread's work that lie a block's threads apart


class Scope(enum.Enum):
    """Where a buffer lives."""

    ARGUMENT = "argument"  # handed over by the caller
    WORKSPACE = "workspace"  # one allocation of the caller for the whole kernel
    SHARED = "shared"  # GPU: memory on chip that the threads of a block share
    LOCAL = "local"  # stack of the thread that runs a parallel iteration
    REGISTER = "register"  # SSA values; every index is a constant after unrolling
    TILE = "tile"  # tile registers of x86-64 (AMX) while a sum runs, then LOCAL; indices as of REGISTER


class Knob(Term, frozen=True, gc=False):
    """An integer that a configuration fixes."""

    name: str

    @property
    def dtype(self) -> str:
        return INDEX


class Var(Term, frozen=True, gc=False):
    """A loop variable."""

    name: str

    @property
    def dtype(self) -> str:
        return INDEX


class Buffer(msgspec.Struct, frozen=True, gc=False):
    """A dense row-major array; `constant` arguments are laid out ahead of time by `packing`."""

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: Scope
    role: str = ""  # "input" | "constant" | "output" for arguments
    packing: Packing | None = None


class Load(Term, frozen=True, gc=False):
    """One element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:
        return self.buffer.dtype

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.indices

    def with_parts(self, *parts: Any) -> Expr:
        return Load(self.buffer, parts)


class For(msgspec.Struct, frozen=True, gc=False):
    """`extent` iterations of the body, var = 0, 1, ...

    A loop with an `unroll_limit` is unrolled when the body, counted in innermost statements, times the
    extent stays within the limit (an integer or a knob); binding decides it.
    """

    var: str
    extent: Expr
    kind: LoopKind
    body: Statement
    unroll_limit: Expr | None = None


class Block(msgspec.Struct, frozen=True, gc=False):
    """Statements in order."""

    statements: tuple[Statement, ...]


class Store(msgspec.Struct, frozen=True, gc=False):
    """buffer[indices] = value; with a guard only where it holds, though the value is computed anyway."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    guard: Expr | None = None

    @property
    def parts(self) -> tuple[Expr, ...]:
        """All its expressions."""
        return (self.value, *self.indices, *(() if self.guard is None else (self.guard,)))


class Allocate(msgspec.Struct, frozen=True, gc=False):
    """The buffer exists within the body; its content is undefined at entry."""

    buffer: Buffer
    body: Statement


class Barrier(msgspec.Struct, frozen=True, gc=False):
    """GPU: no thread of the block goes on before all are here and see what the others have written."""


Statement = For | Block | Store | Allocate | Barrier


class LoopNest(msgspec.Struct, frozen=True, gc=False):
    """x = g(e, s): a whole kernel. Root-level statements of `body` run one after the other."""

    name: str
    arguments: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    body: Block
    flops: int


ZERO, ONE = Int(0), Int(1)


def add(left: Expr, right: Expr) -> Expr:
    """left + right, folded."""
    if isinstance(left, Int):
        if isinstance(right, Int):
            return Int(left.value + right.value)
        if left.value == 0:
            return right
    elif isinstance(right, Int) and right.value == 0:
        return left
    return Binary("+", left, right)


def mul(left: Expr, right: Expr) -> Expr:
    """left * right, folded."""
    if isinstance(left, Int):
        if isinstance(right, Int):
            return Int(left.value * right.value)
        if left.value in (0, 1):
            return right if left.value else ZERO
    elif isinstance(right, Int) and right.value in (0, 1):
        return left if right.value else ZERO
    return Binary("*", left, right)


def ceildiv(left: Expr, right: Expr) -> Expr:
    """The quotient of positive integers rounded up, folded."""
    if isinstance(left, Int) and isinstance(right, Int):
        return Int(-(-left.value // right.value))
    return left if right == ONE else Binary("ceildiv", left, right)


def product(items: tuple[Expr, ...] | list[Expr]) -> Expr:
    """The product of all items."""
    result: Expr = ONE
    for item in items:
        result = mul(result, item)
    return result


def fold(op: str, left: Expr, right: Expr) -> Expr:
    """Binary(op, left, right) with integer literals folded."""
    if op == "+":
        return add(left, right)
    if op == "*":
        return mul(left, right)
    if op == "ceildiv":
        return ceildiv(left, right)
    if isinstance(left, Int) and isinstance(right, Int):
        integer = OPERATIONS[op].integer
        if integer is None:
            return Binary(op, left, right)
        value = integer(left.value, right.value)
        return Const(value, "bool") if OPERATIONS[op].result else Int(value)
    if op in ("//", "-") and right == (ONE if op == "//" else ZERO):
        return left
    if op == "%" and right == ONE:
        return ZERO
    return Binary(op, left, right)


def variables(expr: Expr) -> frozenset[str]:
    """Names of the loop variables that occur in an expression, also inside the indices of its loads."""
    if isinstance(expr, Var):
        return frozenset((expr.name,))
    return frozenset().union(*map(variables, expr.parts))


def loads(expr: Expr) -> tuple[Load, ...]:
    """All loads in an expression, also inside the indices of other loads; inner ones after outer ones."""
    return tuple(item for item in walk(expr) if isinstance(item, Load))


Loops = tuple[For, ...]


def nested(statement: Statement, around: Loops = ()) -> Iterator[tuple[Loops, Statement]]:
    """The statement and all that it holds, outermost first, each with the loops around it."""
    waiting = [(around, statement)]
    while waiting:
        loops, item = waiting.pop()
        yield loops, item
        if isinstance(item, For):
            waiting.append(((*loops, item), item.body))
        elif isinstance(item, Block):
            waiting += [(loops, part) for part in reversed(item.statements)]
        elif isinstance(item, Allocate):
            waiting.append((loops, item.body))


def statements(statement: Statement) -> Iterator[Statement]:
    """The statement and all that it holds, outermost first, in program order."""
    return (item for _, item in nested(statement))


def stores(statement: Statement, around: Loops = ()) -> Iterator[tuple[Loops, Store]]:
    """Every store with the loops around it, outermost first, in program order."""
    return ((loops, item) for loops, item in nested(statement, around) if isinstance(item, Store))


def with_inner(statement: Statement, change: Callable[[Statement], Statement]) -> Statement:
    """The statement with those that it directly holds changed."""
    match statement:
        case For() | Allocate():
            return msgspec.structs.replace(statement, body=change(statement.body))
        case Block(inner):
            return Block(tuple(map(change, inner)))
        case _:
            return statement


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that one joins by `and`, in order."""
    if isinstance(condition, Binary) and condition.op == "and":
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    return [condition]


def all_of(conditions: Iterable[Expr | None]) -> Expr | None:
    """The conditions joined by `and`; None without any."""
    known = [condition for condition in conditions if condition is not None]
    return functools.reduce(functools.partial(Binary, "and"), known) if known else None
