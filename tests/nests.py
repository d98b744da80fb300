"""Hand-written loop nests that the tests of loopnest/ share; shapes are small and bound."""

from __future__ import annotations

from cross.expression.language.terms import Binary, Call, Const, Int, Select
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Buffer,
    Expr,
    For,
    Load,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
    Var,
)
from cross.schedule.packing import PackedLoop, Packing

FLOAT_ZERO = Const(0.0, "float32")


def expr(value: Expr | int | str) -> Expr:
    """An integer, a variable's name or an expression as an expression."""
    if isinstance(value, int):
        return Int(value)
    return Var(value) if isinstance(value, str) else value


def op(name: str, left: Expr | int | str, right: Expr | int | str) -> Expr:
    return Binary(name, expr(left), expr(right))


def plus(left: Expr | int | str, right: Expr | int | str) -> Expr:
    return op("+", left, right)


def times(left: Expr | int | str, right: Expr | int | str) -> Expr:
    return op("*", left, right)


def both(*conditions: Expr) -> Expr:
    result = conditions[0]
    for condition in conditions[1:]:
        result = Binary("and", result, condition)
    return result


def load(buffer: Buffer, *indices: Expr | int | str) -> Load:
    return Load(buffer, tuple(map(expr, indices)))


def store(buffer: Buffer, indices: tuple[Expr | int | str, ...], value: Expr) -> Store:
    return Store(buffer, tuple(map(expr, indices)), value)


def loop(var: str, extent: int | Expr, body: Statement, kind: LoopKind = LoopKind.SERIAL) -> For:
    return For(var, expr(extent), kind, body)


def unrolled(var: str, extent: int, body: Statement) -> For:
    return loop(var, extent, body, LoopKind.UNROLLED)


def vectorized(var: str, extent: int, body: Statement) -> For:
    return loop(var, extent, body, LoopKind.VECTORIZED)


def parallel(var: str, extent: int, body: Statement) -> For:
    return loop(var, extent, body, LoopKind.PARALLEL)


def argument(name: str, shape: tuple[int, ...], role: str, dtype: str = "float32") -> Buffer:
    return Buffer(name, tuple(map(Int, shape)), dtype, Scope.ARGUMENT, role)


def local(name: str, shape: tuple[int, ...], scope: Scope = Scope.LOCAL, dtype: str = "float32") -> Buffer:
    return Buffer(name, tuple(map(Int, shape)), dtype, scope)


def nest(arguments: tuple[Buffer, ...], *body: Statement, workspace: tuple[Buffer, ...] = ()) -> LoopNest:
    return LoopNest("test", arguments, workspace, Block(tuple(body)), 0)


def matmul(m: int, n: int, k: int, rows: int, lanes: int) -> LoopNest:
    """C[m, n] = A[m, k] B[k, n] in register tiles of rows x lanes; B packed by column tiles.

    Row tiles that do not divide m start the last tile earlier; lanes must divide n.
    """
    tiles = n // lanes
    packing = Packing((k, n), (PackedLoop(1, tiles, lanes), PackedLoop(0, k, 1), PackedLoop(1, lanes, 1)))
    a, c = argument("A", (m, k), "input"), argument("C", (m, n), "output")
    b = Buffer(
        "B", tuple(map(Int, packing.packed_shape)), "float32", Scope.ARGUMENT, "constant", packing=packing
    )
    acc = local("C.acc", (rows, lanes), Scope.REGISTER)
    start = times("i.0", rows)
    if m % rows:
        start = op("min", start, m - rows)
    init = unrolled("i.init", rows, vectorized("j.init", lanes, store(acc, ("i.init", "j.init"), FLOAT_ZERO)))
    product = times(load(a, plus(start, "i.1"), "k"), load(b, "j.0", "k", "j.1"))
    update = loop(
        "k",
        k,
        unrolled(
            "i.1",
            rows,
            vectorized("j.1", lanes, store(acc, ("i.1", "j.1"), plus(load(acc, "i.1", "j.1"), product))),
        ),
    )
    out = store(c, (plus(start, "i.2"), plus(times("j.0", lanes), "j.2")), load(acc, "i.2", "j.2"))
    body = Allocate(acc, Block((init, update, unrolled("i.2", rows, vectorized("j.2", lanes, out)))))
    tiled = parallel("i.0", -(-m // rows), loop("j.0", tiles, body))
    return LoopNest("matmul", (a, b, c), (), Block((tiled,)), 2 * m * n * k)


def padded_convolution(height: int, width: int, kernel: int) -> LoopNest:
    """Y[h, w] = sum of X[h + r - p, w + s - p] W[r, s], p = kernel // 2: padding guarded by a Select."""
    pad = kernel // 2
    x, w = argument("X", (height, width), "input"), argument("W", (kernel, kernel), "constant")
    y = argument("Y", (height, width), "output")
    row, column = op("-", plus("h", "r"), pad), op("-", plus("w", "s"), pad)
    inside = both(op("<=", 0, row), op("<", row, height), op("<=", 0, column), op("<", column, width))
    value = times(Select(inside, load(x, row, column), FLOAT_ZERO), load(w, "r", "s"))
    init = store(y, ("h", "w"), FLOAT_ZERO)
    accumulate = store(y, ("h", "w"), plus(load(y, "h", "w"), value))
    body = Block((init, loop("r", kernel, unrolled("s", kernel, accumulate))))
    return nest((x, w, y), parallel("h", height, loop("w", width, body)))


def elementwise(function: str, count: int, lanes: int) -> LoopNest:
    """Y = function(X), vectorized."""
    x, y = argument("X", (count,), "input"), argument("Y", (count,), "output")
    index = plus(times("i.0", lanes), "i.1")
    return nest(
        (x, y),
        loop(
            "i.0",
            count // lanes,
            vectorized("i.1", lanes, store(y, (index,), Call(function, (load(x, index),)))),
        ),
    )
