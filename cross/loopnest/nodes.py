"""ONE way as loops: the grammar of loop nests.

    Expr      = Int | Knob | Var | Literal | Load | Lookup | Binary | Call | Select | Cast
    Statement = For | Block | Store | Allocate | Barrier
    LoopNest  = name, arguments, workspace, body

Integers (loop extents, indices) and scalar values share one expression grammar. A parametric nest has
`Knob` leaves in extents and indices; binding replaces them by integers (bind.py). Everything is a value:
frozen, compared by structure, names of loop variables and buffers unique within a nest.

Start here, then lower.py (schedule to nest), bind.py, verify.py, printer.py, interpreter.py.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from cross.schedule.packing import Packing


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


@dataclass(frozen=True, slots=True)
class Int:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class Knob:
    """An integer that a configuration fixes."""

    name: str


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A scalar constant of a dtype."""

    value: float | int | bool
    dtype: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """One element of a matrix of literals; a literal itself once row and column are known."""

    matrix: tuple[tuple[float, ...], ...]
    row: Expr
    column: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic (+ - * / // % min max ceildiv), comparison (< <= ==) or logic (and or)."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Call:
    """An elementwise function of cross.expression.language.terms.FUNCTIONS."""

    function: str
    arguments: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Select:
    """`then` where the condition holds; loads of the branch not taken are never made."""

    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Cast:
    """Conversion to dtype; the source dtype is kept because nodes carry none."""

    dtype: str
    value: Expr
    source: str


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense row-major array; `constant` arguments are laid out ahead of time by `packing`."""

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: Scope
    role: str = ""  # "input" | "constant" | "output" for arguments
    packing: Packing | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Load:
    """One element of a buffer."""

    buffer: Buffer
    indices: tuple[Expr, ...]


Expr = Int | Knob | Var | Literal | Load | Lookup | Binary | Call | Select | Cast


@dataclass(frozen=True, slots=True)
class For:
    """`extent` iterations of the body, var = 0, 1, ...

    A loop with an `unroll_limit` is unrolled when the body, counted in innermost statements, times the
    extent stays within the limit (an integer or a knob); binding decides it.
    """

    var: str
    extent: Expr
    kind: LoopKind
    body: Statement
    unroll_limit: Expr | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """Statements in order."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[indices] = value; with a guard only where it holds, though the value is computed anyway."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    guard: Expr | None = None


@dataclass(frozen=True, slots=True)
class Allocate:
    """The buffer exists within the body; its content is undefined at entry."""

    buffer: Buffer
    body: Statement


@dataclass(frozen=True, slots=True)
class Barrier:
    """GPU: no thread of the block goes on before all are here and see what the others have written."""


Statement = For | Block | Store | Allocate | Barrier


@dataclass(frozen=True, slots=True)
class LoopNest:
    """x = g(e, s): a whole kernel. Root-level statements of `body` run one after the other."""

    name: str
    arguments: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    body: Block
    flops: int


ZERO, ONE = Int(0), Int(1)


def add(left: Expr, right: Expr) -> Expr:
    """left + right, folded."""
    if isinstance(left, Int) and isinstance(right, Int):
        return Int(left.value + right.value)
    if left == ZERO:
        return right
    if right == ZERO:
        return left
    return Binary("+", left, right)


def mul(left: Expr, right: Expr) -> Expr:
    """left * right, folded."""
    if isinstance(left, Int) and isinstance(right, Int):
        return Int(left.value * right.value)
    if ZERO in (left, right):
        return ZERO
    if left == ONE:
        return right
    if right == ONE:
        return left
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
        return _fold_integers(op, left.value, right.value)
    if op in ("//", "-") and right == (ONE if op == "//" else ZERO):
        return left
    if op == "%" and right == ONE:
        return ZERO
    return Binary(op, left, right)


def _fold_integers(op: str, left: int, right: int) -> Expr:
    match op:
        case "-":
            return Int(left - right)
        case "//":
            return Int(left // right)
        case "%":
            return Int(left % right)
        case "min":
            return Int(min(left, right))
        case "max":
            return Int(max(left, right))
        case "<":
            return Literal(left < right, "bool")
        case "<=":
            return Literal(left <= right, "bool")
        case "==":
            return Literal(left == right, "bool")
        case _:
            return Binary(op, Int(left), Int(right))
