"""What terms become in a loop nest, beside the affine form of their indices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cross.expression import Term, compute, erf, exp, floor, placeholder, sigmoid, tanh
from cross.loopnest.nodes import Var
from cross.loopnest.printer import expression_text
from cross.loopnest.translate import translate
from tests.nests import argument, load


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x: erf(x / 4.0), "erf(A[i] * 0.25)"),
        (lambda x: sigmoid(x / -0.5) * x, "sigmoid(A[i] * -2.0) * A[i]"),
        (lambda x: tanh(sigmoid(x / 2.0) / 8.0), "tanh(sigmoid(A[i] * 0.5) * 0.125)"),
        (lambda x: exp(x / 2.0), "exp(A[i] / 2.0)"),
        (lambda x: x / 4.0, "A[i] / 4.0"),
        (lambda x: floor(x / 49.0), "floor(A[i] / 49.0)"),
        (lambda x: erf(4.0 / x), "erf(4.0 / A[i])"),
        (lambda x: tanh(x / 0.0), "tanh(A[i] / 0.0)"),
        (lambda x: tanh(x / 1e-39), "tanh(A[i] / 1e-39)"),  # whose reciprocal is infinite
        (lambda x: tanh(x / 3e38), "tanh(A[i] / 3e+38)"),  # whose reciprocal is no normal number
    ],
)
def test_smooth_functions_take_products_for_quotients_by_constants(
    body: Callable[[Term], Term], text: str
) -> None:
    source = placeholder((8,), "A")
    result = compute((8,), lambda i: body(source[i]), "y")
    assert result.body is not None
    found = translate(
        result.body,
        {result.axes[0]: Var("i")},
        lambda _, indices: load(argument("A", (8,), "input"), *indices),
    )
    assert expression_text(found) == text
