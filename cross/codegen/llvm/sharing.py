"""Equal parts of an expression as one object, so that a part that occurs often is evaluated once.

Expressions that are made of others grow as trees: the position of a sample, say, is in each of its weights
and indices, and in the bounds of each of these.
"""

from __future__ import annotations

from collections.abc import Hashable

from cross.codegen.instructions import Value
from cross.expression.language.terms import Binary, Call, Cast, Lookup
from cross.loopnest.nodes import Expr, Load


class Sharing:
    """The expression that is being evaluated, and the values of its repeated parts."""

    def __init__(self) -> None:
        self.values: dict[Hashable, tuple[frozenset[Value], Value]] = {}
        """By part and place: the guards under which it was read, and its value."""
        self._parts: dict[Hashable, Expr] = {}
        self._begun: dict[int, tuple[Expr, Expr, frozenset[int]]] = {}
        self._repeated: frozenset[int] = frozenset()

    def begin(self, expr: Expr) -> Expr:
        """The expression with equal parts as one object each; what was known of another is forgotten."""
        found = self._begun.get(id(expr))
        if found is None:
            repeated: set[int] = set()
            found = (expr, self._shared(expr, {}, repeated), frozenset(repeated))
            self._begun[id(expr)] = found
        self.values.clear()
        self._repeated = found[2]
        return found[1]

    def is_repeated(self, expr: Expr) -> bool:
        """Whether it is a part that the expression has more than once."""
        return id(expr) in self._repeated

    def _shared(self, expr: Expr, seen: dict[int, Expr], repeated: set[int]) -> Expr:
        """The object of `_parts` that equals the expression; `seen`: those of this expression, by all ids."""
        found = seen.get(id(expr))
        if found is None:
            built = expr.mapped(lambda part: self._shared(part, seen, repeated))
            found = self._parts.setdefault(_key(built), built)
            if id(found) not in seen:
                seen[id(expr)] = seen[id(found)] = found
                return found
            seen[id(expr)] = found
        if found.parts:
            repeated.add(id(found))
        return found


def _key(expr: Expr) -> Hashable:
    """Equal for equal expressions of the same parts; 0.0 and -0.0 differ, which are equal in Python."""
    parts = tuple(map(id, expr.parts))
    match expr:
        case Binary(op) | Call(op) | Cast(op):
            return type(expr), op, parts
        case Load(buffer):
            return Load, buffer.name, parts
        case Lookup(matrix, _, _, dtype):
            return repr(matrix), dtype, parts
        case _:
            return (type(expr), parts) if parts else repr(expr)
