"""Where binding unrolls the loops that have an unroll limit (cross.loopnest.bind), for whole batches."""

from __future__ import annotations

from typing import Final

import numpy as np

from cross.expression.language.terms import Int
from cross.loopnest.bind import RUNNING_LOOP
from cross.loopnest.nodes import Allocate, Barrier, Block, For, LoopKind, Statement, Store, statements
from toolkit.features.tape import Tape, Values

_RUNNING: Final = float(RUNNING_LOOP)


def unrolled_rows(body: Statement, tape: Tape) -> dict[str, int]:
    """For every loop with an unroll limit, the row of a tape that is 1 where it is unrolled, 0 elsewhere."""
    result: dict[str, int] = {}
    for item in statements(body):
        if isinstance(item, For) and item.unroll_limit is not None and item.var not in result:
            _count_loop(item, tape, result)
    return result


def _count(statement: Statement, tape: Tape, result: dict[str, int]) -> int:
    """The row with the innermost statements that a statement writes out: bind.count_statements."""
    match statement:
        case Store():
            return tape.row(Int(1))
        case Barrier():
            return tape.row(Int(RUNNING_LOOP))
        case Block(statements):
            rows = [_count(item, tape, result) for item in statements]
            return tape.step(("sum", *rows), _sum, *rows) if rows else tape.row(Int(0))
        case Allocate(_, inner):
            return _count(inner, tape, result)
        case For():
            return _count_loop(statement, tape, result)


def _count_loop(loop: For, tape: Tape, result: dict[str, int]) -> int:
    inner, extent = _count(loop.body, tape, result), tape.row(loop.extent)
    if loop.kind is LoopKind.VECTORIZED:
        return inner
    if loop.unroll_limit is not None:
        whole = tape.step(("whole", inner, extent), np.multiply, inner, extent)
        flag = tape.step(("flag", loop.var), np.less_equal, whole, tape.row(loop.unroll_limit))
        result[loop.var] = flag
        return tape.step(("limited", loop.var), _limited, extent, inner, flag, whole)
    if loop.kind is LoopKind.UNROLLED:
        return tape.step(("whole", inner, extent), np.multiply, inner, extent)
    return tape.step(("running", inner, extent), _limited, extent, inner, tape.row(Int(0)), inner)


def _sum(*rows: Values, out: Values) -> None:
    out[:] = sum(rows)


def _limited(extent: Values, inner: Values, flag: Values, whole: Values, out: Values) -> None:
    """A loop of one iteration vanishes; an unrolled one writes all out; any other one runs."""
    out[:] = np.where(extent == 1, inner, np.where(flag > 0, whole, _RUNNING))
