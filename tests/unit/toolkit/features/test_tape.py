"""A tape against the operations of its expressions, one after the other on Python's integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cross.expression.language.terms import Binary
from cross.loopnest.nodes import Expr, Knob
from tests.integer_expressions import integer_expressions, value_of
from toolkit.features.tape import Tape

KNOBS = {"a": np.array([1, 2, 3, 19]), "b": np.array([16, 5, 3, 1])}
EXPRESSIONS = integer_expressions([Knob(name) for name in KNOBS])


@given(st.lists(EXPRESSIONS, min_size=2, max_size=12))
def test_every_row_is_what_its_expression_says(expressions: list[Expr]) -> None:
    """At most eight leaves of at most 19: exact in float64. Other steps read rows as expressions do."""
    tape = Tape()
    rows = [tape.row(expression) for expression in expressions]
    less = tape.step("less", np.less_equal, *rows[:2])
    total = tape.step("total", lambda *terms, out: np.sum(terms, axis=0, out=out), *rows)
    table = tape.run(KNOBS, 4)
    for column in range(4):
        own = {name: int(values[column]) for name, values in KNOBS.items()}
        wanted = [value_of(expression, own) for expression in expressions]
        assert table[rows, column].tolist() == wanted
        assert table[less, column] == (wanted[0] <= wanted[1])
        assert table[total, column] == sum(wanted)


def test_equal_expressions_share_a_row_and_none_needs_a_constant() -> None:
    tape = Tape()
    first, again = (tape.row(Binary("*", Knob("a"), Knob("b"))) for _ in range(2))
    assert first == again
    found = tape.run(KNOBS, 4)
    assert found[first].tolist() == [16.0, 10.0, 9.0, 19.0] and found.shape == (3, 4)
