"""What LLVM text computes once: addresses for a whole register tile, indices that are read for all lanes."""

from __future__ import annotations

import pytest

from cross.codegen.llvm.integers import Integers
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.sharing import Sharing
from cross.expression import Operator, placeholder
from cross.expression.families.sampling import sample
from cross.expression.language.terms import Const, Term
from cross.loopnest import Programs
from cross.schedule import cpu_space
from tests.nests import matmul
from tests.targets import AVX2, HOST


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


def test_where_an_image_is_sampled_is_worked_out_for_all_lanes_at_once() -> None:
    image, positions = placeholder((1, 9, 9, 1), "image"), placeholder((1, 8, 8, 2), "positions")
    sampled = Operator("sample", (image, positions), sample(image, positions, "linear", "zeros", False))
    space = cpu_space(sampled, AVX2)
    lines = llvm_module("sample", Programs(space).nest(space.default()), AVX2).splitlines()
    assert any("@llvm.floor.v" in line for line in lines)
    assert not any("call float @llvm.floor" in line for line in lines)
    reads = [line.split("= ")[1] for line in lines if " = load float" in line]
    assert 0 < len(reads) == len(set(reads))  # whatever the guards of the parts that need an element


def test_equal_parts_are_one_object_and_zeros_of_either_sign_are_not_equal() -> None:
    one, other = (Const(1.0, "float32") / Const(zero, "float32") for zero in (0.0, -0.0))
    term = (one + other) * (Const(1.0, "float32") / Const(0.0, "float32") - other)
    shared = Sharing().begin(term)
    assert repr(shared) == repr(term)
    assert shared.parts[0].parts[0] is shared.parts[1].parts[0]
