"""The vectorized extractor equals its specification, on every structure of several spaces."""

from __future__ import annotations

import numpy as np
import pytest

from boards.target import Target
from cross.expression import Operator, compute, exp, maximum, placeholder, reduce_axis, sum
from cross.expression.conv import conv2d
from cross.expression.window import Window
from cross.loopnest import Programs, bind
from cross.schedule import cpu_space
from toolkit.features import ContextFeatures, plain_features

TARGET = Target(
    name="cpu",
    kind="cpu",
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64-v3",
    cores=(0, 1),
    vector_bytes=32,
    vector_registers=16,
    l2_bytes=1 << 20,
    clock_hz=2e9,
    flops_per_cycle=32,
)


def _conv() -> Operator:
    data, weight = placeholder((1, 13, 11, 6), "data"), placeholder((3, 3, 6, 20), "weight")
    bias = placeholder((20,), "bias")
    conv = conv2d(data, weight, Window(strides=(2, 2), pads=(1, 1, 1, 1)), name="conv")
    out = compute(conv.shape, lambda n, h, w, c: maximum(conv[n, h, w, c] + bias[c], 0.0), name="relu")
    return Operator("conv", (data, weight, bias), out, constants=frozenset({1, 2}))


def _matmul() -> Operator:
    a, b = placeholder((37, 24), "A"), placeholder((24, 50), "B")
    k = reduce_axis(24, "k")
    return Operator(
        "matmul", (a, b), compute((37, 50), lambda i, j: sum(a[i, k] * b[k, j], axis=k), name="C")
    )


def _elementwise() -> Operator:
    a = placeholder((5, 7, 33), "A")
    return Operator("exp", (a,), compute((5, 7, 33), lambda i, j, k: exp(a[i, j, k]) + 1.0, name="E"))


@pytest.mark.parametrize("operator", [_conv(), _matmul(), _elementwise()], ids=lambda operator: operator.name)
def test_vectorized_features_equal_the_plain_ones(operator: Operator) -> None:
    space = cpu_space(operator, TARGET)
    programs = Programs(space)
    extract = ContextFeatures(programs)
    batch = space.sample(np.random.default_rng(3), 400)
    _, rows = np.unique(batch[:, list(space.structural)], axis=0, return_index=True)
    batch = np.concatenate([batch[rows], batch[:50]])  # every structure, and some as they come
    table = extract(batch)
    assert table.dtype == np.float32
    assert table.shape == (len(batch), extract.width) == (len(batch), len(extract.names))
    structures = set()
    for row, found in zip(batch, table, strict=True):
        configuration = space.configuration(row)
        structures.add(programs.structure(configuration))
        nest = bind(
            programs.parametric(programs.structure(configuration)),
            space.fields(configuration),
            simplify=False,
        )
        expected = plain_features(nest)
        np.testing.assert_allclose(found[: len(expected)], expected, rtol=1e-5, atol=1e-5)
        assert not found[len(expected) :].any()
    assert len(structures) == np.prod([space.shape[position] for position in space.structural], initial=1)


def test_features_tell_tile_sizes_apart() -> None:
    """A matmul tile of 1x8 touches 1 row of A, 8 columns of B; of 4x8, four times the accumulators."""
    space = cpu_space(_matmul(), TARGET)
    extract = ContextFeatures(Programs(space))
    base = space.describe(space.default())
    rows = [space.parse({**base, "C.i": [1, 1, size], "C.j": [1, 1, 8]}) for size in (1, 4)]
    table = extract(space.batch(rows))
    column = extract.names.index("C.acc.i length")
    assert table[:, column] == pytest.approx([np.log2(1 + 1), np.log2(1 + 4)])
    touch = extract.names.index("C.acc.i C.acc touch")
    assert table[:, touch] == pytest.approx([np.log2(1 + 8), np.log2(1 + 32)])
