"""A tape against the operations of its expressions, one after the other on Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Int
from cross.loopnest.nodes import Expr, Knob
from toolkit.features.tape import Tape

OPS = ("+", "-", "*", "//", "%", "min", "max", "ceildiv")


def drawn(rng: np.random.Generator, known: list[Expr]) -> Expr:
    left, right = (known[number] for number in rng.integers(len(known), size=2))
    op = str(rng.choice([op for op in OPS if op in OPERATIONS]))
    divides = op in ("//", "%", "ceildiv")
    return Binary(op, left, Int(int(rng.integers(1, 9))) if divides else right)


def value(expr: Expr, knobs: dict[str, int]) -> int:
    match expr:
        case Int(number):
            return number
        case Knob(name):
            return knobs[name]
        case Binary(op, left, right):
            function = OPERATIONS[op].integer
            assert function is not None
            return int(function(value(left, knobs), value(right, knobs)))
    raise TypeError(expr)


@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_what_its_expression_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    known: list[Expr] = [Knob("a"), Knob("b"), Int(3)]
    for _ in range(40):
        if len(str(known[-1])) < 4000:
            known.append(drawn(rng, known[-12:]))
    tape = Tape()
    rows = [tape.row(expr) for expr in known]
    flag = tape.step("flag", np.less_equal, rows[0], rows[1])
    total = tape.step("total", lambda *terms, out: np.sum(terms, axis=0, out=out), *rows[:3])
    knobs = {name: rng.integers(1, 20, 5) for name in ("a", "b")}
    table = tape.run(knobs, 5)
    for column in range(5):
        own = {name: int(values[column]) for name, values in knobs.items()}
        wanted = [value(expr, own) for expr in known]
        small = [place for place, number in enumerate(wanted) if abs(number) < 1 << 53]
        assert [table[rows[place], column] for place in small] == [wanted[place] for place in small]
        assert table[flag, column] == (own["a"] <= own["b"]) and table[total, column] == sum(wanted[:3])


def test_equal_expressions_share_a_row_and_none_needs_a_constant() -> None:
    tape = Tape()
    first, again = (tape.row(Binary("*", Knob("a"), Knob("b"))) for _ in range(2))
    assert first == again
    found = tape.run({"a": np.array([2, 3, 4]), "b": np.array([5, 6, 7])}, 3)
    assert found[first].tolist() == [10.0, 18.0, 28.0] and found.shape == (3, 3)
