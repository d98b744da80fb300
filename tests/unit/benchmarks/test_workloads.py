"""The operators of the kernel benchmark: what they count, and that our expressions compute them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.kernels.expressions import by_products, documented, operands, operator
from benchmarks.kernels.workloads import (
    SUITES,
    WORKLOADS,
    Image,
    Product,
    Workload,
    chosen,
    inputs,
    reference,
    relative_error,
)
from cross.expression.reference import evaluate

SMALL = [
    Image("conv", 9, 3, 5, 3, 1, 1),
    Image("conv", 9, 3, 5, 7, 2, 3),
    Image("conv", 8, 4, 6, 1, 2, 0),
    Image("depthwise", 7, 6, 6, 3, 2, 1),
    Image("transposed", 4, 3, 5, 4, 2, 1),
    Image("transposed", 3, 2, 4, 2, 2, 0),
    Image("transposed", 3, 2, 4, 3, 3, 0),
    Image("transposed", 5, 3, 17, 4, 2, 1),
    Image("transposed", 3, 2, 16, 6, 2, 2),
    Image("transposed", 4, 3, 17, 5, 2, 2),
    Product("dense", 1, 5, 7, 3),
    Product("batch_matmul", 2, 5, 7, 3),
]


def by_hand(of: Image, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A convolution straight from its definition, one multiplication at a time; data [ci, h, w]."""
    result = np.zeros((of.outputs, of.output_size, of.output_size))
    for c, y, x in np.ndindex(result.shape):
        for k, ky, kx in np.ndindex(of.inputs, of.kernel, of.kernel):
            if of.family == "transposed":
                (sy, my), (sx, mx) = (
                    divmod(at + of.pad - place, of.stride) for at, place in ((y, ky), (x, kx))
                )
                factor = weight[k, c, ky, kx] * (my == mx == 0)
            else:
                sy, sx = of.stride * y + ky - of.pad, of.stride * x + kx - of.pad
                same = of.family == "conv" or k == c
                factor = weight[c, k if of.family == "conv" else 0, ky, kx] * same
            if 0 <= sy < of.size and 0 <= sx < of.size:
                result[c, y, x] += factor * data[k, sy, sx]
    return result


@pytest.mark.parametrize("of", SMALL, ids=str)
def test_expression_and_reference_agree(of: Image | Product) -> None:
    workload = Workload("small", "test", of)
    left, right = inputs(workload)
    expected = reference(workload, left, right)
    assert expected.shape == of.shapes[2]
    assert expected.dtype == np.float64
    made = operator(workload)
    # By products, pixels beyond the rim are multiplied too; phases of unequal size are filled up with zeros.
    if isinstance(of, Product) or of.family != "transposed" or not (by_products(of) or of.kernel % of.stride):
        assert made.flops == of.flops
    assert made.constants == (frozenset() if of.family == "batch_matmul" else frozenset({1}))
    output = evaluate(made, list(operands(workload, left, right)))
    assert relative_error(documented(workload, output), expected) < 1e-6


@pytest.mark.parametrize("of", [item for item in SMALL if isinstance(item, Image)], ids=str)
def test_reference_follows_the_definition(of: Image) -> None:
    workload = Workload("small", "test", of)
    left, right = inputs(workload)
    expected = by_hand(of, left[0].astype(np.float64), right.astype(np.float64))
    assert relative_error(reference(workload, left, right), expected[None]) < 1e-12


def test_paper_and_network_sizes() -> None:
    assert {suite: len(members) for suite, members in SUITES.items()} == {
        "conv": 12, "depthwise": 9, "transposed": 4, "matmul": 6
    }  # fmt: skip
    assert WORKLOADS["C6"].of.flops == 231_211_008
    assert WORKLOADS["C6"].bytes_once == 4 * (2 * 28 * 28 * 128 + 9 * 128 * 128)
    assert WORKLOADS["C1"].of.shapes == ((1, 3, 224, 224), (64, 3, 7, 7), (1, 64, 112, 112))
    assert WORKLOADS["T4"].of.shapes == ((1, 64, 32, 32), (64, 3, 4, 4), (1, 3, 64, 64))
    assert WORKLOADS["M1024"].of.flops == 2 * 1024**3


def test_choosing() -> None:
    assert [item.name for item in chosen(["T2", "C3"])] == ["C3", "T2"]
    assert [item.name for item in chosen(["transposed"])] == ["T1", "T2", "T3", "T4"]
    assert len(chosen([])) == len(WORKLOADS)
    with pytest.raises(
        ValueError, match=r"^unknown operators C13: expected names of C1, .* or suites of conv"
    ):
        chosen(["C1", "C13"])


def test_error_of_what_was_not_written() -> None:
    expected = np.array([1.0, -4.0])
    assert relative_error(np.array([1.0, -3.0], np.float32), expected) == 0.25
    assert relative_error(np.array([1.0, np.nan], np.float32), expected) == np.inf
