"""Kernels are checked on data that reach every branch of functions, wherever their code stands.

Code generators write functions in pieces (llvm/functions.py), once for whole vectors, once for the rest of
a row, again for places at an image's border. So each piece has to be met at every place, and an error in it
to be seen in the output. Here the reference's function is spoiled for arguments of one piece.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.expression import Operator, Tensor, placeholder, sigmoid, tanh
from cross.expression.families.conv import capsule_conv2d, conv2d
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.elementwise import UNARY, apply, bias_add, combine
from cross.expression.families.norm import layer_norm, softmax
from cross.expression.families.recurrent import Gates, lstm_cell, lstm_output
from cross.expression.families.window import Window
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.operator import reachable
from cross.expression.reference import evaluate
from toolkit.measure.trial_data import TrialData, trial_data

Array = NDArray[Any]
Piece = tuple[str, Callable[..., Array], float]
"""An operation, for which operands it is spoiled, and what its value is multiplied by (NaN: 1 is added)."""

LANES = 11  # no divisor of an extent here
PIECES: dict[str, Piece] = {
    "exp near 0": ("exp", lambda x: np.abs(x) < 8, 1.0625),
    "exp is 0": ("exp", lambda x: x < -87.34, np.nan),
    "tanh near 0": ("tanh", lambda x: np.abs(x) < 4, 1.0625),
    "tanh is 1": ("tanh", lambda x: x > 7.91, 1.0625),
    "tanh is -1": ("tanh", lambda x: x < -7.91, 1.0625),
    "erf near 0": ("erf", lambda x: np.abs(x) < 2, 1.0625),
    "erf is 1": ("erf", lambda x: x > 3.84, 1.0625),
    "erf is -1": ("erf", lambda x: x < -3.84, 1.0625),
    "sigmoid near 0": ("sigmoid", lambda x: np.abs(x) < 4, 1.0625),
    "sigmoid is 1": ("sigmoid", lambda x: x > 17, 1.0625),
    "sigmoid is 0": ("sigmoid", lambda x: x < -88.73, np.nan),
    "log": ("log", lambda x: x > 1.03, 1.0625),
    "above a bound": ("max", lambda x, y: x > y, 1.0625),
    "below a bound": ("max", lambda x, y: x < y, np.nan),
    "beyond 1": ("min", lambda x, y: x > y, 1.0625),
}
TANH = ("tanh near 0", "tanh is 1", "tanh is -1")
ERF = ("erf near 0", "erf is 1", "erf is -1")


def _operator(output: Tensor, constants: tuple[str, ...] = ()) -> Operator:
    inputs = tuple(tensor for tensor in reachable(output) if tensor.body is None)
    weights = frozenset(place for place, item in enumerate(inputs) if item.name in constants)
    return Operator("tried", inputs, output, weights)


def _behind_convolution(activation: str) -> Operator:
    data, weight = placeholder((1, 5, 6, 7), "x"), placeholder((3, 3, 7, 11), "w")
    sums = bias_add(conv2d(data, weight, Window(pads=(1, 1, 1, 1))), placeholder((11,), "b"))
    return _operator(apply(UNARY[activation], sums, "y"), ("w", "b"))


def _gated_product() -> Operator:
    sums = dense(placeholder((9, 20), "x"), placeholder((20, 13), "w"))
    residual = placeholder((9, 13), "r")
    return _operator(combine(lambda x, r: x * sigmoid(x) + r, sums, residual, "y"), ("w",))


def _in_padding(activation: str) -> Operator:
    """Its last row sees nothing but padding: an activation of the bias alone."""
    data, weight = placeholder((1, 4, 2, 2, 2, 3), "x"), placeholder((1, 2, 2, 4, 3, 2), "w")
    sums = capsule_conv2d(data, weight, Window(pads=(0, 1, 1, 1)))
    return _operator(apply(UNARY[activation], bias_add(sums, placeholder((2,), "b")), "y"), ("w", "b"))


def _behind_normalization() -> Operator:
    found = layer_norm(placeholder((6, 37), "x"), placeholder((37,), "scale"), placeholder((37,), "shift"))
    return _operator(apply(UNARY["Gelu"], found, "y"), ("scale", "shift"))


def _attention(keys: int) -> Operator:
    query, key, value = (
        placeholder(shape, name)
        for name, shape in (("q", (2, 5, 16)), ("k", (2, 16, keys)), ("v", (2, keys, 16)))
    )
    scores = apply(lambda x: x * 0.25, batch_matmul(query, key), "scores")
    return _operator(batch_matmul(softmax(scores, 2), value, "y"))


def _gates(cell: bool) -> Operator:
    data, state = placeholder((3, 4 * 13), "products"), placeholder((3, 13), "cell")
    gates = Gates((sigmoid, tanh))
    return _operator(lstm_cell(data, state, None, gates) if cell else lstm_output(data, state, None, gates))


OPERATORS: dict[str, tuple[Operator, tuple[str, ...]]] = {
    "tanh": (_behind_convolution("Tanh"), TANH),
    "sigmoid": (_behind_convolution("Sigmoid"), ("sigmoid near 0", "sigmoid is 1", "sigmoid is 0")),
    "silu": (_gated_product(), ("sigmoid near 0", "sigmoid is 1", "sigmoid is 0")),
    "gelu": (_behind_convolution("Gelu"), ERF),
    # its tanh() is one of numbers below 0, its logarithms are of numbers above 1
    "elu": (_behind_convolution("Elu"), ("tanh near 0", "tanh is -1")),
    "softplus": (_behind_convolution("Softplus"), ("exp near 0", "exp is 0", "log")),
    "mish": (_behind_convolution("Mish"), ("exp near 0", "exp is 0")),
    "hard swish": (_behind_convolution("HardSwish"), ("above a bound", "below a bound", "beyond 1")),
    "hard swish of a bias": (_in_padding("HardSwish"), ("above a bound", "below a bound", "beyond 1")),
    "erf of a bias": (_in_padding("Erf"), ERF),
    "gelu of a normalized row": (_behind_normalization(), ERF),
    "tanh alone": (
        _operator(apply(tanh, placeholder((9, 37), "x"), "y")),
        TANH,
    ),
    "lstm output": (_gates(False), ("sigmoid near 0", "sigmoid is 1", *TANH)),
}  # fmt: skip
CHAINS: dict[str, tuple[Operator, tuple[str, ...]]] = {
    # e^x of differences from the largest: never of numbers above 0
    "softmax": (_operator(softmax(placeholder((5, 37), "x"), 1)), ("exp near 0", "exp is 0")),
    "softmax by columns": (_operator(softmax(placeholder((9, 21), "x"), 0)), ("exp near 0", "exp is 0")),
    "attention": (_attention(13), ("exp near 0", "exp is 0")),
    "lstm cell": (_gates(True), ("sigmoid near 0", "sigmoid is 1", *TANH)),
}


def _spoiled(
    operator: Operator, data: TrialData, piece: Piece, call: int | None = None, lane: int | None = None
) -> Array:
    """Where the output is wrong by more than is allowed if an operation is: in one of the reference's calls
    of it (None: in all), at every LANES-th element (None: at all)."""
    name, taken, factor = piece
    row, calls = OPERATIONS[name], count()

    def wrong(*operands: Array) -> Array:
        value = np.array(row.numpy(*operands))
        if call is None or next(calls) == call:
            chosen = np.broadcast_to(taken(*operands), value.shape)
            if lane is not None:
                chosen = chosen & (np.arange(value.size).reshape(value.shape) % LANES == lane)
            value[chosen] = value[chosen] + 1 if np.isnan(factor) else value[chosen] * factor
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPERATIONS, name, replace(row, numpy=wrong))
        found = evaluate(operator, data.inputs)
    return np.asarray(np.abs(found - data.expected) > 1e-4 * np.abs(data.expected).max())


@functools.cache
def _sets(name: str) -> tuple[TrialData, ...]:
    return trial_data({**OPERATORS, **CHAINS}[name][0], np.random.default_rng(3))


def _everywhere(seen: Array) -> bool:
    """At most elements, and at one at least of all that have the same place along one axis."""
    axes = range(seen.ndim)
    return bool(seen.mean() > 0.5) and all(
        seen.any(axis=tuple(other for other in axes if other != axis)).all() for axis in axes
    )


@pytest.mark.parametrize(
    ("name", "piece"), [(name, piece) for name, (_, pieces) in OPERATORS.items() for piece in pieces]
)
def test_every_piece_of_a_function_is_met_at_every_place(name: str, piece: str) -> None:
    operator = OPERATORS[name][0]
    seen = np.zeros(operator.output.shape, bool)
    for data in _sets(name):
        seen |= _spoiled(operator, data, PIECES[piece])
        if _everywhere(seen):
            return
    pytest.fail(f"never seen at {np.argwhere(~seen).tolist()}")


@pytest.mark.parametrize(
    ("name", "piece"), [(name, piece) for name, (_, pieces) in CHAINS.items() for piece in pieces]
)
def test_every_piece_of_a_function_in_a_chain_is_met_in_every_lane(name: str, piece: str) -> None:
    operator = CHAINS[name][0]
    for call in range(2 if name == "lstm cell" and piece.startswith("sigmoid") else 1):
        for lane in range(LANES):
            wrong = (_spoiled(operator, data, PIECES[piece], call, lane) for data in _sets(name))
            assert any(map(np.any, wrong)), (call, lane)
