"""The longest chain of a loop nest, and the buffers that its innermost statement touches.

Both extractors start here, on parametric nests and on bound ones alike: the paper picks the longest
chain of loops from the AST (supplement, A.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cross.loopnest.affine import affine, variables
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Binary,
    Block,
    Buffer,
    Call,
    Cast,
    Expr,
    For,
    Load,
    LoopNest,
    Select,
    Statement,
    Store,
    Var,
    add,
    mul,
)

Coefficients = dict[str, Expr]
"""What one iteration of each loop adds to an index, by loop variable."""


@dataclass(frozen=True, slots=True)
class Access:
    """A buffer touched by the innermost statement: coefficients and extent of every dimension."""

    buffer: Buffer
    dimensions: tuple[Coefficients, ...]
    stride: Coefficients  # of the row-major position


@dataclass(frozen=True, slots=True)
class Chain:
    """Loops from the outermost to the innermost, and what the statement inside touches."""

    loops: tuple[For, ...]
    accesses: tuple[Access, ...]


def longest_chain(nest: LoopNest) -> Chain:
    """The first of the deepest statements of a nest with the loops around it."""
    loops, store = max(_chains(nest.body, ()), key=lambda item: len(item[0]))
    accesses: dict[str, Access] = {}
    for buffer, indices in (*_loads(store.value), (store.buffer, store.indices)):
        if buffer.name not in accesses:
            accesses[buffer.name] = _access(buffer, indices)
    return Chain(loops, tuple(accesses.values()))


def _chains(statement: Statement, around: tuple[For, ...]) -> Iterator[tuple[tuple[For, ...], Store]]:
    match statement:
        case For(_, _, _, body):
            yield from _chains(body, (*around, statement))
        case Block(statements):
            for item in statements:
                yield from _chains(item, around)
        case Allocate(_, body):
            yield from _chains(body, around)
        case Store():
            yield around, statement


def _loads(expr: Expr) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    match expr:
        case Load(buffer, indices):
            yield buffer, indices
        case Binary(_, left, right):
            yield from _loads(left)
            yield from _loads(right)
        case Call(_, arguments):
            for argument in arguments:
                yield from _loads(argument)
        case Select(_, then, otherwise):
            yield from _loads(then)
            yield from _loads(otherwise)
        case Cast(_, value, _):
            yield from _loads(value)


def _access(buffer: Buffer, indices: tuple[Expr, ...]) -> Access:
    dimensions = tuple(coefficients(index) for index in indices)
    stride: Coefficients = {}
    for index, extent in zip(dimensions, buffer.shape, strict=True):
        stride = {name: mul(value, extent) for name, value in stride.items()}
        for name, value in index.items():
            stride[name] = add(stride.get(name, ZERO), value)
    return Access(buffer, dimensions, stride)


def coefficients(index: Expr) -> Coefficients:
    """What one iteration of each loop adds to an index.

    The start of a shifted last tile, min(start, last), counts as its start; a loop variable inside any
    other non-affine part counts as stride 1.
    """
    result: Coefficients = {}
    for term, scale in affine(index)[0].items():
        if isinstance(term, Var):
            inner: Coefficients = {term.name: scale}
        elif isinstance(term, Binary) and term.op == "min":
            inner = {name: mul(value, scale) for name, value in coefficients(term.left).items()}
        else:
            inner = dict.fromkeys(sorted(variables(term)), scale)
        for name, value in inner.items():
            result[name] = add(result.get(name, ZERO), value)
    return result
