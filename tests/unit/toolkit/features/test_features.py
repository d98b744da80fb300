"""The vectorized extractor equals its specification, on every structure of several spaces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boards.board import load
from boards.target import Target
from cross.expression import Operator, compute, exp, maximum, placeholder, reduce_axis, sum
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.loopnest import Programs
from cross.schedule import cpu_space, gpu_space, space_of
from tests.feature_rows import check, of_every_structure
from tests.fuzz.operators import FAMILIES, random_operator
from tests.quick import others_slow
from tests.targets import AVX2_TWO_CORES as TARGET
from toolkit.errors import InputError
from toolkit.features.choose import make_features
from toolkit.features.context import ContextFeatures
from toolkit.features.names import KINDS

POCL = load("pocl").target(None)


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


def named(part: Operator | str) -> str:
    return part if isinstance(part, str) else part.name


SMALL = (_matmul(), _elementwise())
LARGE = [(_conv(), kind) for kind in KINDS]
CASES = [*itertools.product(SMALL, KINDS), *others_slow(LARGE, LARGE[KINDS.index("configuration")])]


@pytest.mark.parametrize(("operator", "kind"), CASES, ids=named)
def test_vectorized_features_equal_the_plain_ones(operator: Operator, kind: str) -> None:
    programs = Programs(cpu_space(operator, TARGET))
    extract = make_features(kind, programs)
    batch = of_every_structure(programs, np.random.default_rng(3), 400)
    assert len(np.unique(programs.structures(batch), axis=0)) == len(list(programs.space.structures()))
    assert len(extract.names) == len(set(extract.names)) == extract.width
    check(extract, programs, batch)


@pytest.mark.parametrize(("operator", "kind"), CASES, ids=named)
def test_vectorized_features_of_gpu_programs_equal_the_plain_ones(operator: Operator, kind: str) -> None:
    programs = Programs(gpu_space(operator, POCL))
    extract = make_features(kind, programs)
    assert len(extract.names) == len(set(extract.names)) == extract.width
    check(extract, programs, of_every_structure(programs, np.random.default_rng(3), 100))


def test_features_of_a_gpu_program_by_hand() -> None:
    """5 blocks of 8x25 threads, each thread a vector of 2, in 3 steps of 8 terms.

    A step fetches 8x8 elements of A, one a thread, and 8x50 of B, two a thread; each is a store to shared
    memory and a load from global memory. A thread then loads one element of A and a vector of B for each
    term, and writes one vector of C in the end.
    """
    space = gpu_space(_matmul(), POCL)
    tiles = {"C.i": [1, 8, 1, 1], "C.j": [1, 25, 1, 2], "C.acc.k": [8, 1], "C.fetch.A": [1], "C.fetch.B": [1]}
    row = space.parse({"shared": [0], "unroll": [64], **tiles})
    extract = make_features("relation", Programs(space))
    found = dict(zip(extract.names, 2.0 ** extract(space.batch([row]))[0] - 1.0, strict=True))
    expected = {
        "block product": 5,
        "thread product": 200,
        "vectorized product": 2,
        "shared_bytes": 4 * (8 * 8 + 8 * 50),
        "register_bytes": 4 * 2,
        "barriers": 5 * 3 * 2,
        "global_accesses": 15 * (200 + 400) + 5 * 200,
        "global_bytes": 4 * (15 * (200 + 400) + 5 * 200 * 2),
        "shared_accesses": 15 * (200 + 400) + 15 * 200 * 8 * 2,
        "shared_traffic_bytes": 4 * (15 * (200 + 400) + 15 * 200 * 8 * 2 * 2),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, POCL], ids=["cpu", "gpu"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_vectorized_features_equal_the_plain_ones_of_any_operator(family: str, target: Target) -> None:
    rng = np.random.default_rng([5, *family.encode()])
    programs = Programs(space_of(random_operator(rng, family), target))
    batch = of_every_structure(programs, rng, 60)
    for kind in KINDS:
        check(make_features(kind, programs), programs, batch[rng.permutation(len(batch))[:4]])


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_vectorized_features_equal_the_plain_ones_of_random_cases(seed: int) -> None:
    rng = np.random.default_rng(seed)
    programs = Programs(cpu_space(random_operator(rng), TARGET))
    batch = programs.space.sample(rng, 6)
    for kind in KINDS:
        check(make_features(kind, programs), programs, batch)


@pytest.mark.parametrize("kind", ["relation", "flattened"])
def test_the_width_is_the_same_for_every_operator(kind: str) -> None:
    made = [make_features(kind, Programs(cpu_space(item, TARGET))) for item in (_conv(), _elementwise())]
    assert made[0].width == made[1].width
    assert made[0].names == made[1].names


def test_unknown_features_are_refused() -> None:
    with pytest.raises(InputError, match="unknown features 'curve': expected one of context, relation"):
        make_features("curve", Programs(cpu_space(_matmul(), TARGET)))


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
