"""Addresses in LLVM text are computed once for a whole register tile, not for each of its elements."""

from __future__ import annotations

import pytest

from cross.codegen.llvm.integers import Integers
from cross.codegen.llvm.module import llvm_module
from cross.expression.language.terms import Term
from tests.nests import matmul
from tests.targets import HOST


def test_what_moves_an_address_is_worked_out_once_for_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Term] = []

    def integer(self: Integers, expr: Term) -> object:
        asked.append(expr)
        return right(self, expr)

    right = Integers.integer
    monkeypatch.setattr(Integers, "integer", integer)
    counts, lines = [], []
    for rows in (2, 8):
        asked.clear()
        lines.append(llvm_module("matmul", matmul(16, 32, 8, rows, 8), HOST).count("\n"))
        counts.append(len(asked))
    assert lines[1] > lines[0]
    assert 0 < counts[1] == counts[0]
