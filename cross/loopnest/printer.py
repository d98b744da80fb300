"""A loop nest as text, for people: `to_text(nest)`.

    kernel matmul  (4096 flops)
      input A: float32[16, 8]
      output C: float32[16, 16]

    parallel i in 16:
      allocate C.acc: float32[16] in register
      vectorized j.init in 16:
        C.acc[j.init] = 0.0
      ...

A parametric nest prints the same way, with its knobs as $name. The text is deterministic: golden files
compare it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cross.expression.language.operations import CALLED, OPERATIONS
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Lookup, Select
from cross.loopnest.nodes import (
    Allocate,
    Barrier,
    Block,
    Buffer,
    Expr,
    For,
    Knob,
    Load,
    LoopNest,
    Statement,
    Store,
    Var,
)

INDENT = "  "

_ASSOCIATIVE = ("or", "and", "+", "*")
_IMPLIED_DTYPES = ("float32", "int64", "bool")  # literals of these print without their dtype


def to_text(nest: LoopNest) -> str:
    """The whole nest as text: arguments, workspace, then the loops. Ends with a newline."""
    lines = [f"kernel {nest.name}  ({nest.flops} flops)"]
    lines += [f"{INDENT}{buffer.role or 'argument'} {buffer_text(buffer)}" for buffer in nest.arguments]
    lines += [f"{INDENT}workspace {buffer_text(buffer)}" for buffer in nest.workspace]
    lines.append("")
    lines += statement_lines(nest.body)
    return "\n".join(lines) + "\n"


def statement_text(statement: Statement) -> str:
    """A statement as text, one line for a store, without a newline at the end."""
    return "\n".join(statement_lines(statement))


def statement_lines(statement: Statement, depth: int = 0) -> Iterator[str]:
    """The lines of a statement, indented by `depth` levels."""
    indent = INDENT * depth
    match statement:
        case For():
            yield indent + loop_text(statement)
            yield from statement_lines(statement.body, depth + 1)
        case Block(statements):
            for inner in statements:
                yield from statement_lines(inner, depth)
        case Store(buffer, indices, value, guard):
            condition = "" if guard is None else f" if {expression_text(guard)}"
            yield f"{indent}{buffer.name}[{_join(indices)}] = {expression_text(value)}{condition}"
        case Barrier():
            yield f"{indent}barrier"
        case Allocate(buffer, body):
            yield f"{indent}allocate {buffer_text(buffer)} in {buffer.scope.value}"
            yield from statement_lines(body, depth)


def loop_text(loop: For) -> str:
    """The head of a loop: kind, variable and extent."""
    limit = "" if loop.unroll_limit is None else f" (unroll up to {expression_text(loop.unroll_limit)})"
    return f"{loop.kind.value} {loop.var} in {expression_text(loop.extent)}{limit}:"


def buffer_text(buffer: Buffer) -> str:
    """Name, dtype and shape of a buffer, and how a constant is packed."""
    text = f"{buffer.name}: {buffer.dtype}[{_join(buffer.shape)}]"
    if buffer.packing is None:
        return text
    loops = (f"dim{loop.source}*{loop.step}" for loop in buffer.packing.loops)
    mapped = "".join(f" mapped along dim{dimension}" for dimension, _ in buffer.packing.maps)
    return f"{text} packed from {list(buffer.packing.shape)}{mapped} as ({', '.join(loops)})"


def expression_text(expression: Expr) -> str:
    """An expression as text with the parentheses it needs."""
    return _text(expression)[0]


def _text(expression: Expr) -> tuple[str, int]:
    """The text and the precedence of its outermost operator."""
    match expression:
        case Int(value):
            return str(value), CALLED if value >= 0 else OPERATIONS["*"].precedence
        case Var(name):
            return name, CALLED
        case Knob(name):
            return f"${name}", CALLED
        case Const(value, dtype):
            return (repr(value) if dtype in _IMPLIED_DTYPES else f"{dtype}({value!r})"), CALLED
        case Load(buffer, indices):
            return f"{buffer.name}[{_join(indices)}]", CALLED
        case Lookup(matrix, row, column, _):
            rows = ", ".join("[" + ", ".join(f"{value:g}" for value in line) + "]" for line in matrix)
            return f"[{rows}][{_join((row, column))}]", CALLED
        case Binary(op, left, right) if op in OPERATIONS and OPERATIONS[op].precedence < CALLED:
            return _infix(op, left, right), OPERATIONS[op].precedence
        case Binary(name) | Call(name) | Cast(name):
            return f"{name}({_join(expression.parts)})", CALLED
        case Select():
            return f"select({_join(expression.parts)})", CALLED
        case _:
            raise TypeError(f"no expression of a loop nest: {expression!r}")


def _infix(op: str, left: Expr, right: Expr) -> str:
    level = OPERATIONS[op].precedence
    subtracted = _negated(right) if op == "+" else None
    if subtracted is not None:
        op, right = "-", subtracted
    left_text, left_level = _text(left)
    right_text, right_level = _text(right)
    if left_level < level:
        left_text = f"({left_text})"
    same = isinstance(right, Binary) and right.op == op and op in _ASSOCIATIVE
    if right_level < level or (right_level == level and not same):
        right_text = f"({right_text})"
    return f"{left_text} {op} {right_text}"


def _negated(expression: Expr) -> Expr | None:
    """-expression where the expression is negative at sight, else None."""
    match expression:
        case Int(value) if value < 0:
            return Int(-value)
        case Binary("*", left, Int(value)) if value < 0:
            return left if value == -1 else Binary("*", left, Int(-value))
        case _:
            return None


def _join(parts: Iterable[Expr]) -> str:
    return ", ".join(expression_text(part) for part in parts)
