"""The chains of loops of a nest, and the buffers that the statement inside each of them touches.

All extractors start here, on parametric nests and on bound ones alike. The paper picks the longest chain of
loops from the AST (supplement, A.2.2); `main_chain` prefers chains whose statement combines buffers, because
the transforms around the products of a Winograd convolution are nested deeper than the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from cross.expression.language.terms import Binary, Select
from cross.loopnest.affine import affine
from cross.loopnest.nodes import (
    ZERO,
    Buffer,
    Expr,
    For,
    Load,
    LoopNest,
    Statement,
    Store,
    Var,
    add,
    fold,
    mul,
    stores,
    variables,
)

_PART: Final = {"//": "ceildiv", "%": "%"}

Coefficients = dict[str, Expr]
"""What one iteration of each loop adds to an index, by loop variable."""


class Access(msgspec.Struct, frozen=True):
    """A buffer touched by the innermost statement: coefficients and extent of every dimension."""

    buffer: Buffer
    dimensions: tuple[Coefficients, ...]
    stride: Coefficients  # of the row-major position


class Chain(msgspec.Struct, frozen=True):
    """Loops from the outermost to the innermost, and what the statement inside touches.

    `accesses`: the buffer written first, then those read in order of appearance, each buffer once.
    """

    loops: tuple[For, ...]
    store: Store
    accesses: tuple[Access, ...]


def main_chain(nest: LoopNest) -> Chain:
    """The chain that describes a nest: see `main_store`."""
    return chain(*main_store(nest.body))


def chain(loops: tuple[For, ...], store: Store) -> Chain:
    """The chain of a statement with the loops around it."""
    accesses = {store.buffer.name: _access(store.buffer, store.indices)}
    for buffer, indices in _loads(store.value):
        if buffer.name not in accesses:
            accesses[buffer.name] = _access(buffer, indices)
    return Chain(loops, store, tuple(accesses.values()))


def main_store(statement: Statement) -> tuple[tuple[For, ...], Store]:
    """The innermost statement that stands for all, with the loops around it.

    Statements that combine two or more buffers come before others, then deeper ones, then the first.
    """
    return max(stores(statement), key=lambda item: (_combines(item[1]), len(item[0])))


def _combines(store: Store) -> bool:
    return len({buffer.name for buffer, _ in _loads(store.value)} - {store.buffer.name}) >= 2


def _loads(expr: Expr) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """The loads of an expression; those in conditions and in indices are left out."""
    if isinstance(expr, Load):
        yield expr.buffer, expr.indices
        return
    for part in expr.parts[isinstance(expr, Select) :]:
        yield from _loads(part)


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

    The start of a shifted last tile, min(start, last), counts as its start. A quotient of what moves by c
    moves by ceil(c / n), a remainder by c % n: that is where the first step leads. A loop variable inside
    any other non-affine part counts as stride 1.
    """
    result: Coefficients = {}
    for term, scale in affine(index)[0].items():
        if isinstance(term, Var):
            inner: Coefficients = {term.name: scale}
        elif isinstance(term, Binary) and term.op == "min":
            inner = {name: mul(value, scale) for name, value in coefficients(term.left).items()}
        elif isinstance(term, Binary) and term.op in _PART and not variables(term.right):
            part = _PART[term.op]
            inner = {
                name: mul(fold(part, value, term.right), scale)
                for name, value in coefficients(term.left).items()
            }
        else:
            inner = dict.fromkeys(sorted(variables(term)), scale)
        for name, value in inner.items():
            result[name] = add(result.get(name, ZERO), value)
    return result
