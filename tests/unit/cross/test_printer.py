"""The printed form of loop nests."""

from __future__ import annotations

import pytest

from cross.expression.language.terms import Call, Cast, Const, Int, Select
from cross.loopnest.nodes import Block, Expr, For, Knob, LoopKind, Scope, Var
from cross.loopnest.printer import expression_text, statement_text, to_text
from tests.nests import argument, load, local, matmul, nest, op, plus, store, times

A = argument("A", (8, 8), "input")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (plus(times("i", 4), "j"), "i * 4 + j"),
        (times(plus("i", 4), "j"), "(i + 4) * j"),
        (plus("i", plus("j", "k")), "i + j + k"),
        (op("-", "i", op("-", "j", "k")), "i - (j - k)"),
        (op("-", op("-", "i", "j"), "k"), "i - j - k"),
        (op("-", "i", plus("j", "k")), "i - (j + k)"),
        (op("//", "i", times("j", "k")), "i // (j * k)"),
        (op("%", op("//", "i", 3), 4), "i // 3 % 4"),
        (op("min", times("i", 4), 3), "min(i * 4, 3)"),
        (op("ceildiv", 9, Knob("tile")), "ceildiv(9, $tile)"),
        (plus("i", -1), "i - 1"),
        (plus(13, times(Knob("tile"), -1)), "13 - $tile"),
        (plus("i", times(plus("j", 1), -1)), "i - (j + 1)"),
        (plus("i", times("j", -4)), "i - j * 4"),
        (plus("i", plus("j", -1)), "i + j - 1"),
        (op("-", "i", -1), "i - -1"),
        (
            op("and", op("<=", 0, "i"), op("or", op("<", "i", 3), op("==", "j", 0))),
            "0 <= i and (i < 3 or j == 0)",
        ),
        (load(A, "i", plus("j", 1)), "A[i, j + 1]"),
        (Const(0.5, "float32"), "0.5"),
        (Const(3, "int8"), "int8(3)"),
        (Const(True, "bool"), "True"),
        (Call("pow", (load(A, 0, 0), Const(2.0, "float32"))), "pow(A[0, 0], 2.0)"),
        (Select(op("<", "i", 2), load(A, "i", 0), Const(0.0, "float32")), "select(i < 2, A[i, 0], 0.0)"),
        (Cast("int32", load(A, 0, 0)), "int32(A[0, 0])"),
    ],
)
def test_expressions(expression: Expr, text: str) -> None:
    assert expression_text(expression) == text


def test_a_whole_nest() -> None:
    assert to_text(matmul(7, 8, 6, 4, 4)) == (
        "kernel matmul  (672 flops)\n"
        "  input A: float32[7, 6]\n"
        "  constant B: float32[2, 6, 4] packed from [6, 8] as (dim1*4, dim0*1, dim1*1)\n"
        "  output C: float32[7, 8]\n"
        "\n"
        "parallel i.0 in 2:\n"
        "  for j.0 in 2:\n"
        "    allocate C.acc: float32[4, 4] in register\n"
        "    unrolled i.init in 4:\n"
        "      vectorized j.init in 4:\n"
        "        C.acc[i.init, j.init] = 0.0\n"
        "    for k in 6:\n"
        "      unrolled i.1 in 4:\n"
        "        vectorized j.1 in 4:\n"
        "          C.acc[i.1, j.1] = C.acc[i.1, j.1] + A[min(i.0 * 4, 3) + i.1, k] * B[j.0, k, j.1]\n"
        "    unrolled i.2 in 4:\n"
        "      vectorized j.2 in 4:\n"
        "        C[min(i.0 * 4, 3) + i.2, j.0 * 4 + j.2] = C.acc[i.2, j.2]\n"
    )


def test_knobs_and_unroll_limits_print_by_name() -> None:
    buffer = local("T", (4,), Scope.WORKSPACE)
    body = store(buffer, (plus(times("i", Knob("tile")), "j"),), load(A, "i", "j"))
    inner = For("j", Knob("tile"), LoopKind.UNROLLED, Block((body,)), Knob("unroll"))
    program = nest(
        (A,), For("i", op("ceildiv", 8, Knob("tile")), LoopKind.SERIAL, inner), workspace=(buffer,)
    )
    assert to_text(program).splitlines()[2:] == [
        "  workspace T: float32[4]",
        "",
        "for i in ceildiv(8, $tile):",
        "  unrolled j in $tile (unroll up to $unroll):",
        "    T[i * $tile + j] = A[i, j]",
    ]


def test_a_statement_alone() -> None:
    assert statement_text(store(A, (Int(0), Var("j")), Const(1.0, "float32"))) == "A[0, j] = 1.0"
