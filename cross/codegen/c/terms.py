"""What the printer of C asks of expressions and of text."""

from __future__ import annotations

from collections.abc import Iterator

from cross.expression.language.terms import Binary, Select
from cross.loopnest.nodes import Expr, loads, variables


def known_with(condition: Expr) -> set[Expr]:
    """A condition, and the conditions that it joins by `and`."""
    if isinstance(condition, Binary) and condition.op == "and":
        return {condition} | known_with(condition.left) | known_with(condition.right)
    return {condition}


def without_parentheses(text: str) -> str:
    """A text without the parentheses around all of it that is a comparison or sum: (a < b), not (a) + (b)."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and place + 1 < len(text):
            return text
    return text[1:-1] if text.startswith("(") else text


def guarded_reads(expression: Expr, var: str) -> Iterator[Select]:
    """What an expression reads under a condition, and finds the same for every value of a variable."""
    if isinstance(expression, Select) and var not in variables(expression) and loads(expression):
        yield expression
        return
    for part in expression.parts:
        yield from guarded_reads(part, var)
